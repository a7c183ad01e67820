/** The simulator by its C API alone, without the library: calls, memory, compilations and launches, for tests of what it promises. */
import { createRequire } from "node:module";
import { buildSim } from "../../sim/build.mjs";

interface NativeLibrary {
  func(signature: string): (...args: unknown[]) => unknown;
}
const koffi = createRequire(import.meta.url)("koffi") as { load(path: string): NativeLibrary };
export const paths = await buildSim();

export function bind<Name extends string>(path: string, signatures: Record<Name, string>) {
  const library = koffi.load(path);
  const call = (name: Name) =>
    library.func(signatures[name].replace("(", ` ${name}(`)) as (...args: unknown[]) => number;
  const names = Object.keys(signatures) as Name[];
  return Object.fromEntries(names.map((name) => [name, call(name)])) as Record<Name, (...args: unknown[]) => number>;
}

export const hip = bind(paths.hip, {
  hipInit: "int(uint)",
  hipRuntimeGetVersion: "int(void*)",
  hipGetDeviceCount: "int(void*)",
  hipDeviceGetName: "int(void*, int, int)",
  hipDeviceGetAttribute: "int(void*, int, int)",
  hipGetDevicePropertiesR0600: "int(void*, int)",
  hipGetDeviceProperties: "int(void*, int)",
  hipSetDevice: "int(int)",
  hipDeviceSynchronize: "int()",
  hipMalloc: "int(void*, size_t)",
  hipFree: "int(void*)",
  hipHostMalloc: "int(void*, size_t, uint)",
  hipHostFree: "int(void*)",
  hipHostGetDevicePointer: "int(void*, void*, uint)",
  hipMemGetInfo: "int(void*, void*)",
  hipMemcpy: "int(void*, void*, size_t, int)",
  hipMemcpyAsync: "int(void*, void*, size_t, int, void*)",
  hipMemcpyHtoDAsync: "int(void*, void*, size_t, void*)",
  hipMemcpyDtoHAsync: "int(void*, void*, size_t, void*)",
  hipMemcpyDtoDAsync: "int(void*, void*, size_t, void*)",
  hipMemsetD8Async: "int(void*, uchar, size_t, void*)",
  hipStreamCreateWithFlags: "int(void*, uint)",
  hipStreamDestroy: "int(void*)",
  hipStreamSynchronize: "int(void*)",
  hipStreamQuery: "int(void*)",
  hipStreamWaitEvent: "int(void*, void*, uint)",
  hipEventCreateWithFlags: "int(void*, uint)",
  hipEventRecord: "int(void*, void*)",
  hipEventSynchronize: "int(void*)",
  hipEventQuery: "int(void*)",
  hipEventElapsedTime: "int(void*, void*, void*)",
  hipEventDestroy: "int(void*)",
  hipModuleLoadData: "int(void*, void*)",
  hipModuleUnload: "int(void*)",
  hipModuleGetFunction: "int(void*, void*, str)",
  hipFuncGetAttribute: "int(void*, int, void*)",
  hipModuleLaunchKernel: "int(void*, uint, uint, uint, uint, uint, uint, uint, void*, void*, void*)",
  hipStreamBeginCapture: "int(void*, int)",
  hipStreamEndCapture: "int(void*, void*)",
  hipStreamIsCapturing: "int(void*, void*)",
  hipGraphInstantiate: "int(void*, void*, void*, void*, size_t)",
  hipGraphLaunch: "int(void*, void*)",
  hipGraphExecDestroy: "int(void*)",
  hipGraphDestroy: "int(void*)",
  hipGetLastError: "int()",
  hipPeekAtLastError: "int()",
  hiprtcCreateProgram: "int(void*, str, str, int, void*, void*)",
  hiprtcCompileProgram: "int(void*, int, void*)",
  hiprtcGetProgramLogSize: "int(void*, void*)",
  hiprtcGetProgramLog: "int(void*, void*)",
  hiprtcGetCodeSize: "int(void*, void*)",
  hiprtcGetCode: "int(void*, void*)",
  hiprtcDestroyProgram: "int(void*)",
});
const texts = koffi.load(paths.hip);
export const message = texts.func("str wickSimLastMessage()") as () => string;
export const errorName = texts.func("str hipGetErrorName(int)") as (code: number) => string;
export const addressOf = (createRequire(import.meta.url)("koffi") as { address(value: unknown): bigint }).address;

export const Code = {
  success: 0,
  invalidValue: 1,
  outOfMemory: 2,
  invalidConfiguration: 9,
  noDevice: 100,
  invalidDevice: 101,
  invalidImage: 200,
  invalidHandle: 400,
  notFound: 500,
  notReady: 600,
  launchFailure: 719,
  captureUnsupported: 900,
  captureInvalidated: 901,
} as const;

export function ok(code: number): void {
  if (code !== Code.success) throw new Error(`${errorName(code)}: ${message()}`);
}
/** The handle, pointer or size that a call writes through its first argument. */
export function out(call: (slot: BigUint64Array) => number): bigint {
  const slot = new BigUint64Array(1);
  ok(call(slot));
  return slot[0]!;
}
export const malloc = (bytes: number) => out((p) => hip.hipMalloc(p, bytes));
export const upload = (data: ArrayBufferView): bigint => {
  const pointer = malloc(data.byteLength);
  ok(hip.hipMemcpy(pointer, data, data.byteLength, 1));
  return pointer;
};
export const download = <T extends ArrayBufferView>(pointer: bigint, into: T): T => {
  ok(hip.hipMemcpy(into, pointer, into.byteLength, 2));
  return into;
};

export function compile(source: string, options: string[] = []): { result: number; log: string; code: Uint8Array } {
  const program = new BigUint64Array(1);
  ok(hip.hiprtcCreateProgram(program, source, "test.hip", 0, null, null));
  const words = options.map((option) => Buffer.from(`${option}\0`));
  const list = BigUint64Array.from(words, (word) => addressOf(word));
  const result = hip.hiprtcCompileProgram(program[0], options.length, list.length ? list : null);
  const log = Buffer.alloc(Number(out((n) => hip.hiprtcGetProgramLogSize(program[0], n))));
  ok(hip.hiprtcGetProgramLog(program[0], log));
  const code = new Uint8Array(Number(out((n) => hip.hiprtcGetCodeSize(program[0], n))));
  if (code.length) ok(hip.hiprtcGetCode(program[0], code));
  ok(hip.hiprtcDestroyProgram(program));
  return { result, log: log.toString("utf8", 0, log.length - 1), code };
}

/** Arguments as the launcher packs them: numbers are f32 unless given as a typed array of one element. */
type Argument = bigint | Int32Array | Float32Array | Float64Array | BigUint64Array;
interface Shape {
  grid?: number;
  block?: number;
  shared?: number;
  stream?: bigint | null;
}
export function launch(
  kernel: bigint,
  args: Argument[],
  { grid = 1, block = 32, shared = 0, stream = null }: Shape = {},
): number {
  const held = args.map((arg) => (typeof arg === "bigint" ? BigUint64Array.of(arg) : arg));
  const params = BigUint64Array.from(held, (arg) => addressOf(arg));
  return hip.hipModuleLaunchKernel(kernel, grid, 1, 1, block, 1, 1, shared, stream, params, null);
}
