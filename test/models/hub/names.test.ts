/** What people may call a model, and which files that means. */
import { describe, expect, it } from "vitest";
import { ggufModels } from "../../../src/models/hub/gguf-names.ts";
import { formatRepo, parseModelName, type RepoName } from "../../../src/models/hub/name.ts";
import { selectFiles } from "../../../src/models/hub/selection.ts";

const parse = (text: string) => parseModelName(text, "https://mirror.example");
const repo = (name: string, revision = "main", wanted?: string): RepoName => ({
  kind: "repo",
  repo: name,
  revision,
  ...(wanted !== undefined && { wanted }),
});

describe("a model's name", () => {
  it.each<[string, RepoName]>([
    ["Qwen/Qwen3-0.6B", repo("Qwen/Qwen3-0.6B")],
    ["hf:Qwen/Qwen3-0.6B@refs/pr/1", repo("Qwen/Qwen3-0.6B", "refs/pr/1")],
    ["hf://models/Qwen/Qwen3-0.6B", repo("Qwen/Qwen3-0.6B")],
    ["hf:gpt2", repo("gpt2")],
    ["owner/name-GGUF:Q4_K_M", repo("owner/name-GGUF", "main", "Q4_K_M")],
    ["hf:owner/name@v1:sub/file.gguf", repo("owner/name", "v1", "sub/file.gguf")],
    ["hf.co/owner/name:Q8_0", repo("owner/name", "main", "Q8_0")],
    ["https://huggingface.co/owner/name", repo("owner/name")],
    ["https://huggingface.co/gpt2", repo("gpt2")],
    ["https://huggingface.co/owner/name/tree/v1", repo("owner/name", "v1")],
    [
      "https://huggingface.co/owner/name/blob/main/x/y%20z.gguf?download=true",
      repo("owner/name", "main", "x/y z.gguf"),
    ],
    ["https://mirror.example/owner/name/resolve/v2/y.gguf", repo("owner/name", "v2", "y.gguf")],
  ])("%s is the hub's", (text, name) => {
    expect(parse(text)).toEqual(name);
  });

  it.each(["models/a.gguf", "./a/b", "../a/b", "/a/b", "a/b/c", "gpt2", "C:\\a\\b", "a--b/c", ""])(
    "%s is a path",
    (text) => {
      expect(parse(text)).toEqual({ kind: "path", path: text });
    },
  );

  it("may be an address, of a file as well", () => {
    expect(parse("https://example.com/m.gguf")).toEqual({ kind: "url", url: "https://example.com/m.gguf" });
    expect(parse("file:///tmp/a%20b.gguf")).toEqual({ kind: "path", path: "/tmp/a b.gguf" });
  });

  it.each(["hf:../../etc", "hf:a/b/c", "hf:a--b/c", "hf:a/b@../../x", "https://huggingface.co/", "http://["])(
    "%s is none",
    (text) => {
      expect(() => parse(text)).toThrow(/is no model's name; write owner\/name/);
    },
  );

  it("is written as it can be given again", () => {
    for (const text of ["a/b", "a/b@v1", "a/b:Q8_0", "a/b@v1:Q8_0"])
      expect(formatRepo(parse(text) as RepoName)).toBe(text);
  });
});

const gguf = [
  "README.md",
  "m-BF16.gguf",
  "m-Q4_K_M.gguf",
  "m.i1-IQ2_XXS.gguf",
  "UD/m-UD-Q4_K_XL.gguf",
  "Q8_0/m-Q8_0-00001-of-00002.gguf",
  "Q8_0/m-Q8_0-00002-of-00002.gguf",
  "m-Q6_K-00001-of-00002.gguf",
  "mmproj-m-f16.gguf",
  "imatrix.gguf",
];

describe("the files of a GGUF repository", () => {
  it("are models by their quantizations, where all parts are there", () => {
    expect(ggufModels(gguf).map(({ quantization, files }) => `${quantization} ${files.length}`)).toEqual([
      "Q8_0 2",
      "UD-Q4_K_XL 1",
      "BF16 1",
      "Q4_K_M 1",
      "IQ2_XXS 1",
    ]);
  });

  it("are chosen by quantization in any case, or by file", () => {
    const second = ["Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf"];
    expect(selectFiles(gguf, "q8_0", "o/n")).toEqual({ files: second, entry: second[0] });
    expect(selectFiles(gguf, second[1]!, "o/n").files).toEqual(second);
    expect(selectFiles(gguf, undefined, "o/n").files).toEqual(["m-Q4_K_M.gguf"]);
    expect(selectFiles(["only.gguf"], undefined, "o/n").entry).toBe("only.gguf");
  });

  it("that are not there are answered with those that are", () => {
    expect(() => selectFiles(gguf, "Q3_K_S", "o/n")).toThrow(
      'o/n has no "Q3_K_S"; it has Q8_0, UD-Q4_K_XL, BF16, Q4_K_M, IQ2_XXS',
    );
    expect(() => selectFiles(["a-Q5_0.gguf", "b-Q5_0.gguf"], "Q5_0", "o/n")).toThrow(
      /o\/n has several models: Q5_0 \(a-Q5_0.gguf\), Q5_0 \(b-Q5_0.gguf\); name one .* as in o\/n:a-Q5_0.gguf/,
    );
    expect(() => selectFiles(["a-Q5_0.gguf", "a-Q6_K.gguf"], undefined, "o/n")).toThrow(/several models/);
    expect(() => selectFiles(["a.bin"], "Q5_0", "o/n")).toThrow(/has no GGUF files.*it has a.bin/);
    expect(() => selectFiles(["README.md", "a.gguf"], "README.md", "o/n")).toThrow(/README.md is no model/);
  });
});

describe("the files of a folder with safetensors", () => {
  const beside = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "1_Pooling/config.json",
  ];
  const others = [
    "README.md",
    ".gitattributes",
    "pytorch_model.bin",
    "onnx/model.onnx",
    "original/consolidated.00.pth",
    "a.gguf",
  ];

  it("are those that are read, and no other form of the weights", () => {
    const { files, index } = selectFiles(
      [...others, ...beside, "model.safetensors", "x.safetensors"],
      undefined,
      "o/n",
    );
    expect([...files].sort()).toEqual([...beside, "model.safetensors"].sort());
    expect(index).toBeUndefined();
    expect(
      selectFiles([...beside, "model.safetensors.index.json", "model-00001-of-00002.safetensors"], undefined, "o/n")
        .index,
    ).toBe("model.safetensors.index.json");
  });

  it("are told where none is read", () => {
    expect(() => selectFiles(["config.json", "pytorch_model.bin"], undefined, "o/n")).toThrow(
      "o/n has no weights that Wick reads (config.json with safetensors, or GGUF); it has config.json, pytorch_model.bin",
    );
    expect(() =>
      selectFiles(
        Array.from({ length: 20 }, (_, i) => `${i}`),
        undefined,
        "o/n",
      ),
    ).toThrow(/ and 8 more$/);
    expect(() => selectFiles([], undefined, "o/n")).toThrow(/it has nothing$/);
  });
});
