// ONNX Runtime runs graphs, not calls: each case is a one-operator model, built once, for both of its packages.
//
// Operands are initializers, so they already lie in the runtime's own memory (the web build would otherwise copy every
// input into its heap on every run) and weights are prepacked. Constant folding is off, or the runtime would compute
// the answer while loading. Completion: `await session.run` returns after the last node; the graph's only output is the
// Shape of the result, a few int64, so no result is copied out.
import proto from "onnx-proto";
import { normals } from "../workloads.mjs";

const { AttributeProto, ModelProto, TensorProto } = proto.onnx;
const { FLOAT, INT64 } = TensorProto.DataType;
const Kind = AttributeProto.AttributeType;

function attribute([name, value]) {
  if (Array.isArray(value)) return { name, type: Kind.INTS, ints: value };
  if (typeof value === "string") return { name, type: Kind.STRING, s: new TextEncoder().encode(value) };
  return Number.isInteger(value) ? { name, type: Kind.INT, i: value } : { name, type: Kind.FLOAT, f: value };
}

/** A model that applies one operator to constants of the given shapes. */
function model(opType, shapes, attributes) {
  const initializer = shapes.map((dims, i) => {
    return { name: `in${i}`, dims, dataType: FLOAT, rawData: new Uint8Array(normals(dims, i).buffer) };
  });
  const input = initializer.map(({ name }) => name);
  const node = [
    { opType, input, output: ["y"], attribute: Object.entries(attributes).map(attribute) },
    { opType: "Shape", input: ["y"], output: ["shape"] },
  ];
  const output = [{ name: "shape", type: { tensorType: { elemType: INT64, shape: { dim: [{ dimParam: "rank" }] } } } }];
  const graph = { name: opType, initializer, node, output };
  return ModelProto.encode({ irVersion: 8, opsetImport: [{ version: 23 }], graph }).finish();
}

const OPERATORS = {
  matmul: ["MatMul"],
  matvec: ["MatMul"],
  matvecT: ["Gemm", { transB: 1 }],
  add: ["Add"],
  exp: ["Exp"],
  gelu: ["Gelu", { approximate: "tanh" }],
  softmax: ["Softmax", { axis: -1 }],
  layerNorm: ["LayerNormalization"],
  sum: ["ReduceSum", { keepdims: 0 }],
  transpose: ["Transpose", { perm: [1, 0] }],
  conv2d: ["Conv"],
  sdpa: ["Attention"],
};

// Parameters are attributes of the same name, but for the two that ONNX spells per side.
const spelled = ({ padding, stride, ...rest }) =>
  padding === undefined ? rest : { ...rest, pads: Array(4).fill(padding), strides: [stride, stride] };

export const onnxCases = (ort, threads) =>
  Object.fromEntries(
    Object.entries(OPERATORS).map(([op, [opType, attributes]]) => {
      const options = {
        // The optimizer would push a transpose through Shape and never move the data.
        graphOptimizationLevel: op === "transpose" ? "disabled" : "all",
        intraOpNumThreads: threads,
        extra: {
          optimization: { disable_specified_optimizers: "ConstantFolding" },
          // Idle threads must not spin while the next library is measured.
          session: { force_spinning_stop: "1" },
        },
      };
      const setup = async (shapes, params) => {
        const bytes = model(opType, shapes, { ...attributes, ...spelled(params) });
        const session = await ort.InferenceSession.create(bytes, options);
        return { run: () => session.run({}), dispose: () => session.release() };
      };
      return [op, setup];
    }),
  );
