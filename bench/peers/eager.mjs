/** Cases for libraries of tensors and calls: operands made once, the op run on them, its result let go each time. */
export function eagerCases(ops, operand, finish) {
  const setup = (op) => async (shapes, params) => {
    const inputs = [];
    for (const [seed, shape] of shapes.entries()) inputs.push(await operand(shape, seed));
    const dispose = () => {
      for (const input of inputs) input.dispose();
    };
    return { run: () => finish(op, inputs, params), dispose };
  };
  return Object.fromEntries(Object.entries(ops).map(([name, op]) => [name, setup(op)]));
}
