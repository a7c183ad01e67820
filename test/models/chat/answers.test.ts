/** Answers as models write them, taken apart: text, reasoning, tool calls; whole and in pieces of any size. */
import { describe, expect, it } from "vitest";
import {
  type Answer,
  type AnswerEvent,
  type AnswerForm,
  type AnswerOptions,
  AnswerParser,
  detectAnswerForm,
  parseAnswer,
  type ToolCallForm,
} from "../../../src/models/index.ts";

const think = { open: "<think>", close: "</think>" };
const form = (toolCalls: ToolCallForm, reasoning: AnswerForm["reasoning"] = think): AnswerForm => ({
  toolCalls,
  reasoning: toolCalls === "harmony" ? null : reasoning,
});

/** What an answer gives, the same however it is cut; calls without their ids. */
function read(text: string, of: AnswerForm, options: AnswerOptions = {}): unknown {
  const whole = parseAnswer(text, of, options);
  for (const size of [1, 2, 3, 7]) {
    const parser = new AnswerParser(of, options);
    const events: AnswerEvent[] = [];
    for (let at = 0; at < text.length; at += size) events.push(...parser.push(text.slice(at, at + size)));
    events.push(...parser.end());
    expect(plain(parser.answer)).toEqual(plain(whole));
    const joined = (type: string) => events.map((e) => (e.type === type && "text" in e ? e.text : "")).join("");
    expect([joined("text"), joined("reasoning")]).toEqual([whole.content, whole.reasoning]);
    expect(events.flatMap((e) => (e.type === "tool_call" ? [e.call] : []))).toEqual(parser.answer.toolCalls);
  }
  return plain(whole);
}
const plain = ({ content, reasoning, toolCalls }: Answer) => ({
  content,
  reasoning,
  calls: toolCalls.map(({ function: f }) => [f.name, JSON.parse(f.arguments)]),
});
const answer = (content: string, reasoning = "", ...calls: unknown[]) => ({ content, reasoning, calls });

describe("an answer", () => {
  it("without markers is given as it came", () => {
    for (const text of ["", "  Hello,\nworld! \n", "a < b and <thin", "{not json", "<tool", "\n"])
      expect(read(text, form("hermes"))).toEqual(answer(text));
    expect(read(' {"a": 1} ', form("llama3"))).toEqual(answer(' {"a": 1} '));
    expect(read("<think>x</think>", form("none", null))).toEqual(answer("<think>x</think>"));
  });

  it("has its reasoning told apart, opened by the model or by the prompt", () => {
    expect(read("<think>\nHm.\n\nYes.\n</think>\n\nHello.\n", form("none"))).toEqual(answer("Hello.\n", "Hm.\n\nYes."));
    expect(read("Hm.</think>Hello", form("none"), { startsInReasoning: true })).toEqual(answer("Hello", "Hm."));
    expect(read("</think>\nHello", form("none"), { startsInReasoning: true })).toEqual(answer("Hello"));
    expect(read("<think>\n\n</think>\n\nHello", form("none"))).toEqual(answer("Hello"));
    expect(read("<think>never ended", form("none"))).toEqual(answer("", "never ended"));
    expect(read("<think>I could <tool_call>{}</tool_call></think>no", form("hermes"))).toEqual(
      answer("no", "I could <tool_call>{}</tool_call>"),
    );
    const magistral = form("mistral", { open: "[THINK]", close: "[/THINK]" });
    expect(read("[THINK]Hm[/THINK]Hello", magistral)).toEqual(answer("Hello", "Hm"));
  });

  const call = '{"name": "weather", "arguments": {"city": "Paris", "days": 2}}';
  const weather = ["weather", { city: "Paris", days: 2 }];
  it.each<[ToolCallForm, string, string, unknown]>([
    ["hermes", "one", `<tool_call>\n${call}\n</tool_call>`, answer("", "", weather)],
    [
      "hermes",
      "two, behind reasoning",
      `<think>a</think>\n\nLet me see.\n<tool_call>\n${call}\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>`,
      answer("Let me see.", "a", weather, ["now", {}]),
    ],
    ["hermes", "not closed", `<tool_call>${call}`, answer("", "", weather)],
    ["hermes", "text behind it", `<tool_call>${call}</tool_call>\nDone.`, answer("Done.", "", weather)],
    [
      "hermes",
      "with tags for parameters",
      "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
      answer("", "", weather),
    ],
    [
      "hermes",
      "with tags for keys and values",
      "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
      answer("", "", weather),
    ],
    ["nemotron", "a list", `<TOOLCALL>[${call}]</TOOLCALL>`, answer("", "", weather)],
    ["granite", "a list", `<|tool_call|>[${call}]`, answer("", "", weather)],
    [
      "granite",
      "closed, as Phi does",
      `<|tool_call|>[{"type": "function", "function": ${call}}]<|/tool_call|>`,
      answer("", "", weather),
    ],
    [
      "cohere",
      "an action",
      '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Paris", "days": 2}}]<|END_ACTION|>',
      answer("", "", weather),
    ],
    ["cohere", "none", "<|START_RESPONSE|>Hello<|END_RESPONSE|>", answer("Hello")],
    [
      "kimi",
      "a section",
      '<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{"city": "Paris", "days": 2}<|tool_call_end|><|tool_calls_section_end|>',
      answer("", "", weather),
    ],
    ["llama3", "bare", '{"name": "weather", "parameters": {"city": "Paris", "days": 2}}', answer("", "", weather)],
    [
      "llama3",
      "two",
      '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris", "days": 2}}; {"name": "now", "parameters": {}}',
      answer("", "", weather, ["now", {}]),
    ],
    [
      "llama3",
      "built-in",
      '<|python_tag|>brave_search.call(query="a \\"b\\"")',
      answer("", "", ["brave_search", { query: 'a "b"' }]),
    ],
    [
      "mistral",
      "a list",
      `[TOOL_CALLS] [${call}, {"name": "now", "arguments": {}, "id": "abcdefghi"}]`,
      answer("", "", weather, ["now", {}]),
    ],
    [
      "mistral",
      "named",
      'Sure.[TOOL_CALLS]weather[ARGS]{"city": "Paris", "days": 2}[TOOL_CALLS]now[CALL_ID]abc[ARGS]{}',
      answer("Sure.", "", weather, ["now", {}]),
    ],
    [
      "deepseek",
      "fenced",
      'Ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{"city": "Paris", "days": 2}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
      answer("Ok", "", weather, ["now", {}]),
    ],
    [
      "deepseek",
      "plain",
      '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Paris", "days": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
      answer("", "", weather),
    ],
    [
      "harmony",
      "all channels",
      '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Paris", "days": 2}<|call|>',
      answer("Let me see.", "Hm.", weather),
    ],
    [
      "harmony",
      "recipient before the channel",
      '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"city": "Paris", "days": 2}',
      answer("", "", weather),
    ],
    [
      "harmony",
      "no call",
      "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello<|return|>",
      answer("Hello", "Hm."),
    ],
    ["harmony", "no channels", "Hello", answer("Hello")],
  ])("calls tools as %s does: %s", (name, _, text, expected) => {
    expect(read(text, form(name))).toEqual(expected);
  });

  it("keeps what looks like a call and is none", () => {
    const texts: [ToolCallForm, string][] = [
      ["hermes", "see <tool_call>not json</tool_call> there"],
      ["hermes", "<tool_call>[1]"],
      ["mistral", "[TOOL_CALLS]what is this"],
      ["llama3", '<|python_tag|>print("hello")'],
      ["deepseek", "<｜tool▁call▁begin｜>nothing<｜tool▁call▁end｜>"],
      ["kimi", "<|tool_call_begin|>nothing<|tool_call_end|>"],
    ];
    for (const [name, text] of texts) expect(read(text, form(name))).toEqual(answer(text));
    const other = '{"name": "Ada", "parameters": {}}';
    expect(read(other, form("llama3"), { toolNames: ["weather"] })).toEqual(answer(other));
    expect(read(other, form("llama3"), { toolNames: ["Ada"] })).toEqual(answer("", "", ["Ada", {}]));
  });

  it("gives calls ids that every template takes back, and keeps those of the model", () => {
    const { toolCalls } = parseAnswer(
      '[TOOL_CALLS][{"name": "a", "arguments": "{}"}, {"name": "b", "id": "123456789"}]',
      form("mistral"),
    );
    expect(toolCalls[0]).toEqual({
      id: expect.stringMatching(/^[a-zA-Z0-9]{9}$/),
      type: "function",
      function: { name: "a", arguments: "{}" },
    });
    expect(toolCalls[1]!.id).toBe("123456789");
  });
});

describe("the form of answers", () => {
  it.each<[ToolCallForm, string | undefined, string]>([
    ["hermes", "<think>", "{% if tools %}<tool_call>{% endif %}{{ content.split('</think>')[-1] }}"],
    ["mistral", undefined, "[AVAILABLE_TOOLS]{{ tools }}[/AVAILABLE_TOOLS][TOOL_CALLS]"],
    ["llama3", undefined, "<|start_header_id|>{{ tools }}<|python_tag|>"],
    ["llama3", undefined, "<|start_header_id|>{{ message.tool_calls[0] }}"],
    ["cohere", "<|START_THINKING|>", "<|START_ACTION|>{{ tools }}<|END_ACTION|><|START_THINKING|>"],
    ["harmony", undefined, "<|start|>assistant<|channel|>analysis<|message|>"],
    ["deepseek", "<think>", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜> <think>"],
    ["none", undefined, "{{ messages }}"],
  ])("is seen from a template: %s", (toolCalls, open, template) => {
    const found = detectAnswerForm(template);
    expect([found.toolCalls, found.reasoning?.open]).toEqual([toolCalls, open]);
  });

  it("is seen from the vocabulary where the template is silent", () => {
    const tokens = new Set(["<tool_call>", "<think>"]);
    expect(detectAnswerForm("{{ messages }}", (token) => tokens.has(token))).toEqual(form("hermes"));
  });
});
