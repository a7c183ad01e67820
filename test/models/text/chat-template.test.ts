/** Templates: what they are given, and that those of strangers do no harm. */
import { describe, expect, it } from "vitest";
import { type ChatMessage, ChatTemplate, type ToolDefinition } from "../../../src/models/index.ts";

const weather: ToolDefinition = {
  type: "function",
  function: { name: "weather", parameters: { type: "object", properties: { city: { type: "string" } } } },
};
const turn: ChatMessage[] = [
  { role: "user", content: "Weather?" },
  {
    role: "assistant",
    content: null,
    tool_calls: [{ id: "abcdefghi", type: "function", function: { name: "weather", arguments: '{"city":"Paris"}' } }],
  },
  { role: "tool", tool_call_id: "abcdefghi", name: "weather", content: "Sun" },
];

// In the manner of the published ones, cut down to what they do with tools.
const qwen = `{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>
{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}{% if c.function %}{% set c = c.function %}{% endif %}<tool_call>{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}</tool_call>{% endfor %}{% endif %}
{% endfor %}{% if add_generation_prompt %}<|assistant|><think>{% endif %}`;
const mistral = `{% for m in messages %}{% if m.role == "user" %}[INST]{{ m.content }}[/INST]{% elif m.tool_calls is defined %}{% for c in m.tool_calls %}{% if not c.id is defined or c.id|length != 9 %}{{ raise_exception("ids have 9 characters") }}{% endif %}[TOOL_CALLS]{{ c.function | tojson }}{% endfor %}{% else %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]{% endif %}{% endfor %}`;
const deepseek = `{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c['function']['name'] + '\\n' + c['function']['arguments'] + '\\n' }}{% endfor %}{% else %}{{ m['content'] + '\\n' }}{% endif %}{% endfor %}`;
const parts = `{% for m in messages %}{{ m.role }}:{% for part in m.content %}{% if part.type == "text" %}{{ part.text }}{% endif %}{% endfor %};{% endfor %}`;

describe("a template is given", () => {
  it("tools, calls with their arguments as an object, and results", () => {
    const text = new ChatTemplate(qwen).render(turn, { tools: [weather] });
    expect(text).toContain(`<tools>{"type": "function", "function": {"name": "weather"`);
    expect(text).toContain(`<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>`);
    expect(text).toContain("<|tool|>Sun<|assistant|><think>");
    expect(new ChatTemplate(mistral).render(turn)).toBe(
      `[INST]Weather?[/INST][TOOL_CALLS]{"name": "weather", "arguments": {"city": "Paris"}}[TOOL_RESULTS]Sun[/TOOL_RESULTS]`,
    );
  });

  it("arguments as text where it writes only text", () => {
    const template = new ChatTemplate(deepseek);
    expect(template.form).toEqual({ content: "text", arguments: "text" });
    expect(template.render(turn)).toBe('Weather?\nweather\n{"city":"Paris"}\nSun\n');
    const object = { ...turn[1]!.tool_calls![0]!, function: { name: "weather", arguments: { city: "Paris" } } };
    expect(template.render([{ role: "assistant", tool_calls: [object] }])).toBe('weather\n{"city":"Paris"}\n');
  });

  it("tools by the template that a model has for them", () => {
    const template = new ChatTemplate("plain", {}, "{{ bos_token }}{{ tools[0].function.name }}");
    expect(template.render(turn)).toBe("plain");
    expect(template.render(turn, { tools: [] })).toBe("plain");
    expect(template.render(turn, { tools: [weather] })).toBe("weather");
  });

  it("arguments that are no JSON as the text they are", () => {
    const broken = { ...turn[1]!.tool_calls![0]!, function: { name: "weather", arguments: "{city" } };
    expect(new ChatTemplate(qwen).render([{ role: "assistant", tool_calls: [broken] }])).toContain(
      '"arguments": "{city"',
    );
  });

  it("content in the form that it takes", () => {
    const text = [
      { type: "text" as const, text: "a" },
      { type: "text" as const, text: "b" },
    ];
    expect(new ChatTemplate(qwen).render([{ role: "user", content: text }], { addGenerationPrompt: false })).toBe(
      "<|user|>a\nb",
    );
    const template = new ChatTemplate(parts);
    expect(template.form.content).toBe("parts");
    expect(
      template.render([
        { role: "user", content: text },
        { role: "user", content: "c" },
      ]),
    ).toBe("user:ab;user:c;");
  });

  it("reasoning by both names, and no field without a value", () => {
    const template = new ChatTemplate(
      "{% for m in messages %}{{ m.reasoning_content }}{{ m.thinking }}{{ 'name' in m }}{{ 'tool_calls' in m }}{% endfor %}",
    );
    expect(template.render([{ role: "assistant", content: "", reasoning_content: "hm", name: undefined }])).toBe(
      "hmhmfalsefalse",
    );
  });

  it("what it can take, or the caller is told", () => {
    const template = new ChatTemplate("{{ messages[0].content }}");
    const render =
      (message: unknown, options = {}) =>
      () =>
        template.render([message as ChatMessage], options);
    expect(render({ role: "user", content: "a" }, { tools: [weather] })).toThrow(/no place for tools/);
    expect(render({ role: "user", content: "a" }, { tools: [{ name: "x" }] })).toThrow(/a tool is \{ type: "function"/);
    expect(render({ role: "user", content: [{ type: "image_url", image_url: "x" }] })).toThrow(
      /of type "image_url"; models here take/,
    );
    expect(render({ role: "user", content: ["a"] })).toThrow(/content is "a"; models here take/);
    expect(render({ role: "user", content: 3 })).toThrow(/text or a list of parts/);
    expect(render({ role: "user", content: null })).toThrow(/needs a role and a content/);
    expect(render({ role: "assistant", tool_calls: [{ name: "f" }] })).toThrow(/a tool call is \{ id, type/);
    expect(render(null)).toThrow(/needs a role/);
  });

  it("the date, and numbers in a row", () => {
    expect(new ChatTemplate("{{ strftime_now('%d %b %Y, %A %H:%M:%S %y-%m %B %a %%%q') }}").render(turn)).toMatch(
      /^\d\d \w{3} \d{4}, \w+day \d\d:\d\d:\d\d \d\d-\d\d \w+ \w{3} %%q$/,
    );
    const ranges = "{{ range(3) }}{{ range(1, 3) }}{{ range(5, 0, -2) }}{{ range(3, 1) }}";
    expect(new ChatTemplate(ranges).render(turn)).toBe("[0, 1, 2][1, 2][5, 3, 1][]");
    expect(() => new ChatTemplate("{{ range(1, 2, 0) }}").render(turn)).toThrow(/a step other than 0/);
  });
});

describe("a template of a stranger", () => {
  const doubled = (start: string, times: number, next: string) =>
    `{% set ns = namespace(x=${start}) %}{% for i in range(${times}) %}{% set ns.x = ${next} %}{% endfor %}`;
  const long = doubled("'aaaaaaaaaaaaaaaa'", 15, "ns.x ~ ns.x");
  const nested = doubled("[1, 1]", 60, "[ns.x, ns.x]");

  it.each([
    ["counts for ever", "{% for i in range(1000000000000) %}x{% endfor %}", /counts to 1000000000000/],
    ["counts to no number", "{% for i in range(1/0) %}x{% endfor %}", /counts to Infinity/],
    [
      "loops in loops",
      `{% for a in range(9999) %}${"{% for a in range(9999) %}x{% endfor %}"}{% endfor %}`,
      /more than \d+ steps/,
    ],
    [
      "loops over nothing much",
      `{% for a in range(9999) %}${"{% for a in range(9999) %}{% endfor %}"}{% endfor %}`,
      /more than \d+ steps/,
    ],
    ["calls itself", "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", /nests more than \d+ deep/],
    ["doubles a text", doubled("'a'", 60, "ns.x ~ ns.x"), /makes a text of \d+ characters/],
    ["doubles a list", doubled("[1]", 60, "ns.x + ns.x"), /steps/],
    ["writes a text over and over", `${long}{% for i in range(9999) %}{{ ns.x }}{% endfor %}`, /steps|makes a text/],
    [
      "searches a text over and over",
      `${long}{% for i in range(99999) %}{% if 'b' in ns.x %}{% endif %}{% endfor %}`,
      /steps/,
    ],
    ["replaces by much", `${long}{{ ns.x.replace('', ns.x) }}`, /repeats \d+ characters/],
    ["replaces by much in a filter", `${long}{{ ns.x | replace('', ns.x) }}`, /repeats \d+ characters/],
    ["joins by much", `${long}{{ range(99999) | join(ns.x) }}`, /repeats \d+ characters/],
    ["separates by much", `${long}{{ range(99999) | tojson(separators=(ns.x, ns.x)) }}`, /repeats \d+ characters/],
    ["indents by much", "{{ 'a\\nb' | indent(1000000000, true) }}", /repeats \d+ characters/],
    ["indents JSON by much", "{{ [1] | tojson(indent=1000000000) }}", /repeats \d+ characters/],
    ["indents a block by much", "{% filter indent(1000000000, true) %}x{% endfilter %}", /repeats \d+ characters/],
    ["holds lists many times over, as JSON", `${nested}{{ ns.x | tojson }}`, /too large a list|steps/],
    ["holds lists many times over", `${nested}{{ ns.x }}`, /too large a list|steps/],
    ["holds lists many times over, beside text", `${nested}{{ 'a' ~ ns.x }}`, /too large a list|steps/],
    ["holds itself", "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x }}", /too large a list|steps/],
  ])("is stopped where it %s", { timeout: 30_000 }, (_, source, why) => {
    const template = new ChatTemplate(source);
    const render = () => template.render([{ role: "user", content: "a" }]);
    expect(render).toThrow(
      expect.objectContaining({ code: "InvalidFile", name: "FormatError", message: expect.stringMatching(why) }),
    );
  });

  it("reaches nothing but its variables", () => {
    const reach = [
      "messages.constructor",
      "''.constructor",
      "messages[0]['__proto__']",
      "range.constructor",
      "process",
      "globalThis",
      "require",
      "messages.__class__",
      "messages[0].toString",
      "range.prototype",
      "this",
    ];
    const source = reach.map((expression) => `{{ ${expression} is defined }}`).join();
    expect(new ChatTemplate(source).render([{ role: "user", content: "a" }])).toBe(reach.map(() => "false").join());
    expect(() => new ChatTemplate("{{ messages.constructor('return 1')() }}").render(turn)).toThrow(/not a function/);
  });

  it("is refused where it cannot be parsed, however it tries", () => {
    expect(() => new ChatTemplate(`{{ ${"(".repeat(100_000)} }}`)).toThrow(/cannot be parsed/);
    expect(() => new ChatTemplate("{% for %}")).toThrow(/cannot be parsed/);
    expect(() => new ChatTemplate("a".repeat(2 ** 20 + 1))).toThrow(/more than any model's/);
  });

  it("has room enough for long chats", () => {
    const chat: ChatMessage[] = Array.from({ length: 1000 }, (_, i) => ({
      role: i % 2 ? "assistant" : "user",
      content: "word ".repeat(400),
    }));
    const source = `{% for m in messages %}{% if loop.index0 > 0 and messages[loop.index0 - 1].role == m.role %}{{ raise_exception("turns") }}{% endif %}{% if messages | length > 3 %}<{{ m.role }}>{% endif %}{{ m.content.split('</think>')[-1] | trim }}{% endfor %}`;
    expect(new ChatTemplate(source).render(chat).length).toBeGreaterThan(1_990_000);
  });
});
