/** The formats of strings, as patterns that are at most as wide as what validators take. */

const hex = "[0-9a-fA-F]";
const label = "[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?";
const host = `${label}(\\.${label}){0,3}`;
const octet = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
const day = "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))";
const date = `[0-9]{4}-${day}`;
const time = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
const path = "(/[A-Za-z0-9._~-]+)*/?";
const uri = `https?://${host}(:[1-9][0-9]{0,3})?${path}(\\?[A-Za-z0-9=&._~-]+)?(#[A-Za-z0-9._~-]+)?`;
const email = `[A-Za-z0-9_+-]{1,16}(\\.[A-Za-z0-9_+-]{1,16})?@${label}(\\.${label}){1,3}`;
const group = `${hex}{1,4}`;
const pointer = "(/([A-Za-z0-9_.-]|~[01])*)*";

/** Others than these are notes to people, as the standard has it. */
export const formats: Readonly<Record<string, string>> = {
  date,
  time,
  "date-time": `${date}T${time}`,
  duration: "P([1-9][0-9]{0,3}D(T[1-9][0-9]{0,3}H)?|T[1-9][0-9]{0,3}(H([1-9][0-9]{0,3}M)?|M|S)|[1-9][0-9]{0,3}[YMW])",
  email,
  "idn-email": email,
  hostname: host,
  "idn-hostname": host,
  ipv4: `${octet}(\\.${octet}){3}`,
  ipv6: `(${group}(:${group}){7}|${group}(:${group}){0,5}::${group}|::${group}|::)`,
  uri,
  iri: uri,
  "uri-reference": `(${uri}|${path})`,
  "iri-reference": `(${uri}|${path})`,
  "uri-template": uri,
  uuid: `${hex}{8}-${hex}{4}-[1-8]${hex}{3}-[89abAB]${hex}{3}-${hex}{12}`,
  "json-pointer": pointer,
  "relative-json-pointer": `(0|[1-9][0-9]{0,3})(#|${pointer})`,
  regex: "[A-Za-z0-9_ -]*",
  byte: "([A-Za-z0-9+/]{4})*",
};
