import ort from "onnxruntime-node";
import { onnxCases } from "./onnx.mjs";

export const version = ort.env.versions.node;
export const cases = {};

export function threads(n) {
  Object.assign(cases, onnxCases(ort, n));
  return n;
}
