// What compilers for GPUs see of a kernel's source: neither comments nor what only the simulator reads. A change of those needs no new
// compilation for the record of kernels.

/** The two kinds of targets, and what is known of each; what is not known may be either. */
const targets = [
  {
    GPU_AMD: true,
    GPU_NVIDIA: false,
    GPU_HOST: false,
    GPU_WARPGROUPS: false,
    GPU_CLUSTERS: false,
    GPU_BYTE_TILES: false,
  },
  { GPU_AMD: false, GPU_NVIDIA: true, GPU_HOST: false },
];

/** A condition of the preprocessor's for a target: true, false, or undefined where it depends on more. */
function holds(condition, target) {
  const tokens = condition.match(/defined\s*\(\s*\w+\s*\)|\w+|&&|\|\||[<>=!]=|[^\s\w]/g) ?? [];
  let at = 0;
  const not = (x) => (x === undefined ? undefined : !x);
  const and = (x, y) => (x === false || y === false ? false : x && y);
  const or = (x, y) => (x === true || y === true ? true : x === undefined || y === undefined ? undefined : x || y);
  const one = () => {
    const token = tokens[at++];
    if (token === "!") return not(one());
    if (token === "(") {
      const inner = any();
      if (tokens[at++] !== ")") throw new Error(`cannot read the condition ${condition}`);
      return inner;
    }
    // What is compared or called, or no name of ours, tells nothing.
    const first = at;
    for (let depth = 0; at < tokens.length && (depth > 0 || !["&&", "||", ")"].includes(tokens[at])); at++)
      depth += tokens[at] === "(" ? 1 : tokens[at] === ")" ? -1 : 0;
    return at === first ? target[token] : undefined;
  };
  const all = () => {
    let value = one();
    while (tokens[at] === "&&") {
      at++;
      value = and(value, one());
    }
    return value;
  };
  const any = () => {
    let value = all();
    while (tokens[at] === "||") {
      at++;
      value = or(value, all());
    }
    return value;
  };
  const value = any();
  if (at !== tokens.length) throw new Error(`cannot read the condition ${condition}`);
  return value;
}

/** Strings stay, as they may hold what looks like a comment. */
const withoutComments = (text) =>
  text.replace(/"(?:\\.|[^"\\\n])*"|\/\/[^\n]*|\/\*[\s\S]*?\*\//g, (part) => (part[0] === '"' ? part : " "));

/** The text of a file as some GPU's compiler may see it, line by line. */
export function deviceSource(text) {
  const kept = [];
  /** For each target whether the branch that is read may be its own, and whether a later one may. */
  const frames = [{ may: targets.map(() => true), later: targets.map(() => false) }];
  for (const raw of withoutComments(text).replace(/\\\n/g, " ").split("\n")) {
    const line = raw.trim().replace(/\s+/g, " ");
    const [, word, condition] = /^#\s*(ifdef|ifndef|if|elif|else|endif)\b\s*(.*)$/.exec(line) ?? [];
    const outer = word?.startsWith("if") ? frames.at(-1) : frames.at(-2);
    if (word === "endif") frames.pop();
    else if (word) {
      const values = targets.map((target) =>
        word === "else" ? true : word.length > 4 ? undefined : holds(condition, target),
      );
      const free = word.startsWith("if") ? outer.may : frames.pop().later;
      frames.push({
        may: values.map((value, t) => free[t] && value !== false),
        later: values.map((value, t) => free[t] && value !== true),
      });
    }
    if (line && frames.at(-1).may.includes(true)) kept.push(line);
  }
  if (frames.length !== 1) throw new Error("a condition of the preprocessor's has no end");
  return kept.join("\n");
}
