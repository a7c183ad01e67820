/** As SentencePiece models are: spaces are "▁", unknown characters are bytes, the first space is dropped again. */
export const sentencePieceJson = (() => {
  const bytes = Array.from({ length: 256 }, (_, i) => `<0x${i.toString(16).toUpperCase().padStart(2, "0")}>`);
  const vocab = ["<unk>", "<s>", "</s>", ...bytes, ..."▁abcdefgh".split(""), "▁a", "bc"];
  const added = (id: number) => ({ id, content: vocab[id], special: true, normalized: false });
  return {
    added_tokens: [added(0), added(1), added(2)],
    normalizer: {
      type: "Sequence",
      normalizers: [
        { type: "Prepend", prepend: "▁" },
        { type: "Replace", pattern: { String: " " }, content: "▁" },
      ],
    },
    pre_tokenizer: null,
    post_processor: {
      type: "TemplateProcessing",
      single: [{ SpecialToken: { id: "<s>", type_id: 0 } }, { Sequence: { id: "A", type_id: 0 } }],
      pair: [],
      special_tokens: { "<s>": { id: "<s>", ids: [1], tokens: ["<s>"] } },
    },
    decoder: {
      type: "Sequence",
      decoders: [
        { type: "Replace", pattern: { String: "▁" }, content: " " },
        { type: "ByteFallback" },
        { type: "Fuse" },
        { type: "Strip", content: " ", start: 1, stop: 0 },
      ],
    },
    model: {
      type: "BPE",
      unk_token: "<unk>",
      byte_fallback: true,
      fuse_unk: true,
      vocab: Object.fromEntries(vocab.map((token, id) => [token, id])),
      merges: ["▁ a", "b c"],
    },
  };
})();
