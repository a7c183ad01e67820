/** Tokenizers as encoders have them, small enough for the tiny models' 128 tokens. */

const letters = "abcdefghijklmnopqrstuvwxyz".split("");
const special = (content: string, id: number) => ({ id, content, special: true, normalized: false });

/** BERT's: words, their parts marked by "##", [CLS] before and [SEP] behind; a second text is of type 1. */
export const wordPieceJson = (() => {
  const names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
  const words = ["cat", "cats", "dog", "the", "##s", "##ing"];
  const vocab = [
    ...names,
    ...letters,
    ...letters.map((letter) => `##${letter}`),
    ...words.filter((w) => w.length > 3 || !w.startsWith("##")),
  ];
  const token = (id: string, type_id: number) => ({ SpecialToken: { id, type_id } });
  const text = (id: "A" | "B", type_id: number) => ({ Sequence: { id, type_id } });
  return {
    added_tokens: names.map(special),
    normalizer: {
      type: "BertNormalizer",
      clean_text: true,
      handle_chinese_chars: true,
      strip_accents: null,
      lowercase: true,
    },
    pre_tokenizer: { type: "BertPreTokenizer" },
    post_processor: {
      type: "TemplateProcessing",
      single: [token("[CLS]", 0), text("A", 0), token("[SEP]", 0)],
      pair: [token("[CLS]", 0), text("A", 0), token("[SEP]", 0), text("B", 1), token("[SEP]", 1)],
      special_tokens: {
        "[CLS]": { id: "[CLS]", ids: [2], tokens: ["[CLS]"] },
        "[SEP]": { id: "[SEP]", ids: [3], tokens: ["[SEP]"] },
      },
    },
    decoder: { type: "WordPiece", prefix: "##", cleanup: true },
    model: {
      type: "WordPiece",
      unk_token: "[UNK]",
      continuing_subword_prefix: "##",
      max_input_chars_per_word: 100,
      vocab: Object.fromEntries(vocab.map((piece, id) => [piece, id])),
    },
  };
})();

/** XLM-RoBERTa's: unigrams, <s> before and </s> behind, two of them between two texts. */
export const unigramJson = (() => {
  const names = ["<pad>", "<s>", "</s>", "<unk>"];
  const pieces = ["▁", ...letters, ...letters.map((letter) => `▁${letter}`), "▁cat", "▁the"];
  return {
    added_tokens: names.map(special),
    normalizer: null,
    pre_tokenizer: {
      type: "Sequence",
      pretokenizers: [{ type: "WhitespaceSplit" }, { type: "Metaspace", replacement: "▁", prepend_scheme: "always" }],
    },
    post_processor: {
      type: "RobertaProcessing",
      sep: ["</s>", 2],
      cls: ["<s>", 1],
      trim_offsets: true,
      add_prefix_space: false,
    },
    decoder: { type: "Metaspace", replacement: "▁", prepend_scheme: "always" },
    model: {
      type: "Unigram",
      unk_id: 3,
      vocab: [
        ...names.map((name) => [name, 0]),
        ...pieces.map((piece, i) => [piece, -1 - i / 64 - (piece.length < 3 ? 8 : 0)]),
      ],
    },
  };
})();
