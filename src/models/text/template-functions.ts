/** What templates find besides their variables, as transformers gives it to them. */

export const constants = { true: true, false: false, none: null, True: true, False: false, None: null };

export function refuse(why: unknown): never {
  throw new Error(String(why));
}

const padded = (n: number): string => String(n).padStart(2, "0");
const named = (options: Intl.DateTimeFormatOptions) => (date: Date) => date.toLocaleDateString("en-US", options);
const dateFields: Readonly<Record<string, (date: Date) => string>> = {
  Y: (date) => String(date.getFullYear()),
  y: (date) => padded(date.getFullYear() % 100),
  m: (date) => padded(date.getMonth() + 1),
  d: (date) => padded(date.getDate()),
  H: (date) => padded(date.getHours()),
  M: (date) => padded(date.getMinutes()),
  S: (date) => padded(date.getSeconds()),
  b: named({ month: "short" }),
  B: named({ month: "long" }),
  a: named({ weekday: "short" }),
  A: named({ weekday: "long" }),
  "%": () => "%",
};

/** The date, for templates that tell it to the model. */
export function strftime(format: unknown): string {
  const now = new Date();
  return String(format).replace(/%([a-zA-Z%])/g, (all, field: string) => dateFields[field]?.(now) ?? all);
}
