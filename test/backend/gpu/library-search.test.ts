/** Where the vendors' libraries are looked for, over made-up machines: Linux, WSL and Windows. */
import { posix, win32 } from "node:path";
import { describe, expect, it } from "vitest";
import { cudaFiles } from "../../../src/backend/gpu/cuda/folders.ts";
import { rocmFiles } from "../../../src/backend/gpu/rocm/folders.ts";
import { besides, candidates, expand, type LibraryFiles, type Surroundings } from "../../../src/backend/gpu/search.ts";

/** A machine that has these files and no others. */
function machine(platform: "linux" | "win32", files: string[], env: Record<string, string> = {}): Surroundings {
  const { dirname, basename } = platform === "win32" ? win32 : posix;
  const folders = new Map<string, Set<string>>();
  const key = (folder: string): string => (platform === "win32" ? folder.toLowerCase() : folder);
  for (const file of files)
    for (let path = file; dirname(path) !== path; path = dirname(path)) {
      const folder = key(dirname(path));
      folders.set(folder, (folders.get(folder) ?? new Set()).add(basename(path)));
    }
  return { platform, env, list: (folder) => [...(folders.get(key(folder)) ?? [])] };
}

const isFile = (path: string): boolean => path.includes("/") || path.includes("\\");
/** Files that would be opened, in order. */
const found = (files: LibraryFiles, where: Surroundings, near?: string): string[] =>
  [...candidates(files, where, near ? besides(near, where) : [])].filter(isFile);

describe("on Linux", () => {
  it("AMD's own packages: the current release first, then those kept beside it, the latest first", () => {
    const where = machine("linux", [
      "/opt/rocm/lib/libamdhip64.so.7",
      "/opt/rocm-5.7.1/lib/libamdhip64.so",
      "/opt/rocm-6.10.0/lib/libamdhip64.so.6",
      "/opt/rocm-6.2.0/lib/libamdhip64.so.6",
    ]);
    expect(found(rocmFiles("hip", where), where)).toEqual([
      "/opt/rocm/lib/libamdhip64.so.7",
      "/opt/rocm-6.10.0/lib/libamdhip64.so.6",
      "/opt/rocm-6.2.0/lib/libamdhip64.so.6",
      "/opt/rocm-5.7.1/lib/libamdhip64.so",
    ]);
  });

  it("a folder that a variable names comes before the loader's names, and those before the usual folders", () => {
    const files = ["/kit/lib/librocblas.so.4", "/opt/rocm/lib/librocblas.so.5"];
    for (const variable of ["ROCM_PATH", "ROCM_HOME", "HIP_PATH"]) {
      const where = machine("linux", files, { [variable]: "/kit" });
      const order = [...candidates(rocmFiles("rocblas", where), where)];
      expect(order[0]).toBe("/kit/lib/librocblas.so.4");
      expect(order.slice(1, -1)).toEqual(
        expect.arrayContaining(["librocblas.so", "librocblas.so.5", "librocblas.so.0"]),
      );
      expect(order.at(-1)).toBe("/opt/rocm/lib/librocblas.so.5");
    }
    expect([...candidates(rocmFiles("rocblas", machine("linux", [])), machine("linux", []))]).not.toContain(
      "librocblas.so.*",
    );
  });

  it("of one folder the name without a version, then the highest, and no other file", () => {
    const names = [
      "libhiprtc.so.7.0.51831",
      "libhiprtc.so",
      "libhiprtc.so.7",
      "libhiprtc-builtins.so.7",
      "libhiprtc.so.7.debug",
    ];
    const where = machine(
      "linux",
      names.map((name) => `/opt/rocm/lib/${name}`),
    );
    expect(found(rocmFiles("hiprtc", where), where)).toEqual([
      "/opt/rocm/lib/libhiprtc.so",
      "/opt/rocm/lib/libhiprtc.so.7",
      "/opt/rocm/lib/libhiprtc.so.7.0.51831",
    ]);
  });

  it("distributions' folders, wheels, Conda, Spack and the packages made from TheRock", () => {
    const places: [string, string, string?][] = [
      ["/usr/lib/x86_64-linux-gnu/libamdhip64.so.5", ""],
      ["/usr/lib64/libamdhip64.so.6", ""],
      ["/opt/rocm/core-7.14/lib/libamdhip64.so.7", ""],
      ["/venv/lib/python3.12/site-packages/_rocm_sdk_core/lib/libamdhip64.so.7", "VIRTUAL_ENV", "/venv"],
      ["/conda/lib/libamdhip64.so.6", "CONDA_PREFIX", "/conda"],
      ["/work/.spack-env/view/lib/libamdhip64.so.6", "SPACK_ENV", "/work"],
    ];
    for (const [file, variable, value] of places) {
      const where = machine("linux", [file], variable ? { [variable]: value! } : {});
      expect(found(rocmFiles("hip", where), where)).toEqual([file]);
    }
  });

  it("what lies beside an open library comes first, in a wheel also in the folders of its other parts", () => {
    const wheel = "/venv/lib/python3.12/site-packages";
    const where = machine("linux", [
      `${wheel}/_rocm_sdk_core/lib/libamdhip64.so.7`,
      `${wheel}/_rocm_sdk_libraries_gfx110X/lib/librocblas.so.5`,
      "/opt/rocm/lib/librocblas.so.4",
    ]);
    const near = `${wheel}/_rocm_sdk_core/lib/libamdhip64.so.7`;
    expect(found(rocmFiles("rocblas", where), where, near)[0]).toBe(
      `${wheel}/_rocm_sdk_libraries_gfx110X/lib/librocblas.so.5`,
    );
    expect(found(rocmFiles("rocblas", where), where, "libamdhip64.so")).toEqual(["/opt/rocm/lib/librocblas.so.4"]);
  });

  it("NVIDIA's: the driver under WSL, the toolkit by its variable or folder, and pip's", () => {
    const wsl = machine("linux", ["/usr/lib/wsl/lib/libcuda.so.1", "/usr/lib/wsl/lib/libdxcore.so"]);
    expect(found(cudaFiles("driver", wsl), wsl)).toEqual(["/usr/lib/wsl/lib/libcuda.so.1"]);
    const files = [
      "/usr/local/cuda-12.4/lib64/libnvrtc.so.12",
      "/usr/local/cuda-13.0/lib64/libnvrtc.so.13",
      "/venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
    ];
    const where = machine("linux", files, { VIRTUAL_ENV: "/venv", CUDA_HOME: "/usr/local/cuda-12.4" });
    expect(found(cudaFiles("nvrtc", where), where)).toEqual([files[0], files[2], files[1], files[0]]);
  });
});

describe("on Windows", () => {
  const env = { SystemRoot: "C:\\Windows", ProgramFiles: "C:\\Program Files", Path: "C:\\Windows\\System32;D:\\tools" };
  const sdk = "C:\\Program Files\\AMD\\ROCm";

  it("the HIP runtime of the driver, the newest first, before that of a development kit", () => {
    const files = [
      "C:\\Windows\\System32\\amdhip64.dll",
      "C:\\Windows\\System32\\amdhip64_6.dll",
      "C:\\Windows\\System32\\amdhip64_7.dll",
      `${sdk}\\6.2\\bin\\amdhip64_6.dll`,
    ];
    const where = machine("win32", files, { ...env, HIP_PATH: `${sdk}\\6.2\\` });
    const order = [...candidates(rocmFiles("hip", where), where)];
    expect(order.slice(0, 4)).toEqual([files[2], files[1], files[0], files[3]]);
    expect(order.filter((path) => !isFile(path)).slice(-3)).toEqual([
      "amdhip64_7.dll",
      "amdhip64_6.dll",
      "amdhip64.dll",
    ]);
  });

  it("hiprtc and comgr by the release in their names, the latest first, without their companions", () => {
    const bin = (version: string, ...names: string[]): string[] =>
      names.map((name) => `${sdk}\\${version}\\bin\\${name}`);
    const where = machine(
      "win32",
      [
        ...bin("6.2", "hiprtc0602.dll", "hiprtc-builtins0602.dll", "amd_comgr_2.dll"),
        ...bin("6.4", "hiprtc0604.dll", "HIPRTC0603.DLL", "amd_comgr0604.dll"),
        "D:\\tools\\hiprtc0507.dll",
      ],
      env,
    );
    expect(found(rocmFiles("hiprtc", where), where)).toEqual([
      `${sdk}\\6.4\\bin\\hiprtc0604.dll`,
      `${sdk}\\6.4\\bin\\HIPRTC0603.DLL`,
      `${sdk}\\6.2\\bin\\hiprtc0602.dll`,
      "D:\\tools\\hiprtc0507.dll",
    ]);
    expect(found(rocmFiles("comgr", where), where)).toEqual([
      `${sdk}\\6.4\\bin\\amd_comgr0604.dll`,
      `${sdk}\\6.2\\bin\\amd_comgr_2.dll`,
    ]);
  });

  it("rocBLAS, hipBLASLt and MIOpen in the kit that HIP_PATH names and in wheels", () => {
    const wheel = "D:\\venv\\Lib\\site-packages\\_rocm_sdk_libraries\\bin";
    const files = [
      `${sdk}\\6.4\\bin\\rocblas.dll`,
      `${wheel}\\rocblas.dll`,
      `${wheel}\\libhipblaslt.dll`,
      `${wheel}\\MIOpen.dll`,
    ];
    const where = machine("win32", files, { ...env, HIP_PATH: `${sdk}\\6.4`, VIRTUAL_ENV: "D:\\venv" });
    expect(found(rocmFiles("rocblas", where), where).slice(0, 2)).toEqual([files[0], files[1]]);
    expect(found(rocmFiles("hipblaslt", where), where)).toEqual([files[2]]);
    expect(found(rocmFiles("miopen", where), where)).toEqual([files[3]]);
  });

  it("NVIDIA's: the driver in System32, the toolkit's of CUDA 12 and 13, and pip's", () => {
    const toolkit = `${env.ProgramFiles}\\NVIDIA GPU Computing Toolkit\\CUDA`;
    const files = [
      "C:\\Windows\\System32\\nvcuda.dll",
      `${toolkit}\\v12.6\\bin\\nvrtc64_120_0.dll`,
      `${toolkit}\\v12.6\\bin\\nvrtc64_120_0.alt.dll`,
      `${toolkit}\\v12.6\\bin\\cublas64_12.dll`,
      `${toolkit}\\v13.0\\bin\\x64\\nvrtc64_130_0.dll`,
      "D:\\venv\\Lib\\site-packages\\nvidia\\cuda_nvrtc\\bin\\nvrtc64_120_0.dll",
    ];
    const where = machine("win32", files, { ...env, CUDA_PATH: `${toolkit}\\v13.0`, VIRTUAL_ENV: "D:\\venv" });
    expect(found(cudaFiles("driver", where), where)).toEqual([files[0]]);
    expect(found(cudaFiles("nvrtc", where), where)).toEqual([files[4], files[5], files[4], files[1]]);
    expect(found(cudaFiles("cublas", where), where)).toEqual([files[3]]);
  });

  it("paths are Windows' own", () => {
    const where = machine("win32", ["C:\\kit 2\\bin\\a.dll", "C:\\kit 10\\bin\\a.dll"]);
    expect(expand("C:\\kit *\\bin", where)).toEqual(["C:\\kit 10\\bin", "C:\\kit 2\\bin"]);
    expect(besides("C:\\kit 2\\bin\\a.dll", where)).toEqual(["C:\\kit 2\\bin"]);
    expect(besides("a.dll", where)).toEqual([]);
  });
});
