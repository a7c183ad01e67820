import ort from "onnxruntime-web";
import { onnxCases } from "./onnx.mjs";

export const version = ort.env.versions.web;
export const cases = {};

// It ships a SIMD build only; numThreads counts the calling thread.
export function threads(n) {
  ort.env.wasm.numThreads = n;
  Object.assign(cases, onnxCases(ort, n));
  return n;
}
