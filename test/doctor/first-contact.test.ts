/** What the doctor makes of other people's machines: made-up systems, libraries that are old, mixed or broken. */
import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { pathToFileURL } from "node:url";
import { afterEach, beforeAll, describe, expect, it, vi } from "vitest";
import { judgePlatform } from "../../src/doctor/advice.ts";
import { targetName } from "../../src/doctor/cards.ts";
import { systemChecks } from "../../src/doctor/describe-system.ts";
import { examine } from "../../src/doctor/doctor.ts";
import { adviceFor, type Situation } from "../../src/doctor/findings.ts";
import type { Hardware } from "../../src/doctor/hardware.ts";
import { installationsOf, loadedLibraries } from "../../src/doctor/loaded.ts";
import type { PlatformFacts } from "../../src/doctor/probe.ts";
import { Root } from "../../src/doctor/root.ts";
import { surroundings } from "../../src/doctor/system.ts";
import { loadModel } from "../../src/models/index.ts";
import { buildPackage, type Package, sim, stubLibrary } from "../helpers/built-package.ts";
import { tiny } from "../helpers/model-folders.ts";
import { temporaryFolder } from "../helpers/temporary-folder.ts";

const at = temporaryFolder();
afterEach(() => vi.unstubAllEnvs());

/** A system of these files. */
function rootOf(name: string, files: Record<string, string>): Root {
  for (const [path, text] of Object.entries(files)) {
    mkdirSync(dirname(at(join(name, path))), { recursive: true });
    writeFileSync(at(join(name, path)), text);
  }
  return new Root(at(name));
}

const user = { env: {}, gids: [1000], uid: 1000 };
const card = "sys/class/drm/card1/device";
const amd = {
  "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.2 LTS"\n',
  "etc/group": "root:x:0:\nvideo:x:44:\nrender:x:109:\nada:x:1000:\n",
  "sys/bus/pci/devices/0000:03:00.0/class": "0x030000\n",
  "sys/bus/pci/devices/0000:03:00.0/vendor": "0x1002\n",
  "sys/bus/pci/devices/0000:03:00.0/device": "0x744c\n",
  [`${card}/vendor`]: "0x1002\n",
  [`${card}/device`]: "0x744c\n",
  [`${card}/vbios_version`]: "113-D70401-00\n",
  [`${card}/product_name`]: "Radeon RX 7900 XTX\n",
  [`${card}/unique_id`]: "1a2b3c4d5e6f7a8b\n",
  [`${card}/serial_number`]: "SECRET\n",
  [`${card}/mem_info_vram_total`]: `${24 * 2 ** 30}\n`,
  [`${card}/mem_info_gtt_total`]: `${16 * 2 ** 30}\n`,
  [`${card}/fw_version/mec_fw_version`]: "0x00000212\n",
  [`${card}/fw_version/vce_fw_version`]: "0x00000000\n",
  "sys/class/drm/card1-DP-1/status": "connected\n",
  "sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 16\ngfx_target_version 0\n",
  "sys/class/kfd/kfd/topology/nodes/1/properties": "simd_count 192\ngfx_target_version 110000\n",
  "sys/module/amdgpu/version": "6.8.5\n",
  "sys/module/amdgpu/taint": "OE\n",
  "opt/rocm-6.2.0/.info/version": "6.2.0-66\n",
  "dev/kfd": "",
  "dev/dri/renderD128": "",
};

describe("a made-up system", () => {
  it("with an AMD card tells all that a maintainer asks for, and no number that is the card's own", () => {
    const others = { PATH: "/bin", HOME: "/home/ada", NVIDIA_API_KEY: "SECRET", HF_TOKEN: "SECRET" };
    const env = { HSA_OVERRIDE_GFX_VERSION: "11.0.0", HIP_VISIBLE_DEVICES: "0", ...others };
    const { system, hardware } = surroundings(rootOf("amd", amd), { ...user, env, gids: [1000, 109] });
    expect(system).toMatchObject({
      distribution: "Ubuntu 24.04.2 LTS",
      groups: ["render"],
      container: null,
      wsl: null,
      rocm: { "/opt/rocm-6.2.0": "6.2.0-66" },
    });
    expect(hardware.rocm).toMatchObject({
      pci: ["1002:744c"],
      driver: "6.8.5",
      driverOrigin: "DKMS",
      targets: ["gfx1100"],
      environment: { HSA_OVERRIDE_GFX_VERSION: "11.0.0", HIP_VISIBLE_DEVICES: "0" },
      cards: [
        {
          pci: "1002:744c",
          product: "Radeon RX 7900 XTX",
          vbios: "113-D70401-00",
          vramBytes: 24 * 2 ** 30,
          gttBytes: 16 * 2 ** 30,
          firmware: { mec: "0x00000212" },
        },
      ],
    });
    expect(hardware.rocm.environment).not.toHaveProperty("PATH");
    expect(hardware.rocm.nodes.map((n) => [n.path, n.access])).toEqual([
      ["/dev/kfd", "ok"],
      ["/dev/dri/renderD128", "ok"],
    ]);
    expect(JSON.stringify({ system, hardware })).not.toMatch(/SECRET|1a2b3c4d|ada/);
    const lines = systemChecks({ system, hardware }).map((c) => `${c.name}: ${c.detail}`);
    expect(lines).toEqual(
      expect.arrayContaining([
        "AMD GPUs: 1002:744c, Radeon RX 7900 XTX, 24.0 GiB of its own, 16.0 GiB of the host's, VBIOS 113-D70401-00, 1 firmwares (gfx1100)",
        "amdgpu: 6.8.5, of the DKMS package",
        "groups: render",
        "ROCm: 6.2.0-66 in /opt/rocm-6.2.0",
        "environment: HSA_OVERRIDE_GFX_VERSION=11.0.0 HIP_VISIBLE_DEVICES=0",
      ]),
    );
  });

  it.each([
    ["docker", { "/.dockerenv": "" }, {}],
    ["podman", { "/run/.containerenv": "" }, {}],
    ["kubernetes", {}, { KUBERNETES_SERVICE_HOST: "10.0.0.1" }],
    ["lxc", { "/proc/1/cgroup": "12:pids:/lxc/box\n" }, {}],
    ["systemd-nspawn", {}, { container: "systemd-nspawn" }],
  ])("is in a container of %s", (name, files, env) => {
    const { system } = surroundings(rootOf(`in-${name}`, { "/etc/group": "", ...files }), { ...user, env });
    expect(system.container).toBe(name);
  });

  it("is WSL, with or without its ways to the GPU", () => {
    const kernel = { "/proc/sys/kernel/osrelease": "6.6.87.2-microsoft-standard-WSL2\n" };
    const wsl = (name: string, files: object) => surroundings(rootOf(name, { ...kernel, ...files }), user).system.wsl;
    expect(wsl("wsl0", {})).toEqual({ dxg: false, rocdxg: false });
    expect(wsl("wsl1", { "/dev/dxg": "", "/opt/rocm/lib/librocdxg.so.1": "" })).toEqual({ dxg: true, rocdxg: true });
  });

  it("without anything tells that nothing is there", () => {
    const { hardware, system } = surroundings(new Root(at("nothing")), { ...user, uid: 0 });
    expect(hardware.rocm).toMatchObject({ pci: [], driver: null, cards: [], targets: [] });
    expect(system).toMatchObject({ distribution: "unknown", groups: ["root"], rocm: {} });
    expect(systemChecks({ hardware, system }).map((c) => c.name)).toEqual(["machine", "processor"]);
  });

  it("names targets as the compiler does", () => {
    expect([110_003, 90_010, 90_402, 100_306, 120_001, 90_006].map(targetName)).toEqual([
      ...["gfx1103", "gfx90a", "gfx942", "gfx1036", "gfx1201", "gfx906"],
    ]);
  });
});

describe("libraries that were loaded", () => {
  const maps = (...paths: string[]): string =>
    paths.map((path, i) => `7f${i}0-7f${i}f r-xp 00000000 fe:00 42 ${" ".repeat(20)}${path}`).join("\n");

  it("are told once each, with the release of their installation", () => {
    const root = rootOf("releases", { "/opt/rocm-6.2.0/.info/version": "6.2.0-66\n" });
    const hip = "/opt/rocm-6.2.0/lib/libamdhip64.so.6.2.60200";
    const hsa = "/usr/lib/x86_64-linux-gnu/libhsa-runtime64.so.1.11.0";
    const loaded = loadedLibraries(maps(hip, hip, "/usr/lib/libc.so.6", `${hsa} (deleted)`, "[heap]"), root);
    expect(loaded).toEqual([{ path: hip, release: "6.2.0-66" }, { path: hsa }]);
    expect(installationsOf(loaded)).toEqual(["/opt/rocm-6.2.0/lib", "/usr/lib/x86_64-linux-gnu"]);
    const facts: PlatformFacts = { platform: "rocm", devices: [], loaded };
    expect(adviceFor({ problems: [], facts })).toEqual([
      expect.stringMatching(
        /^libraries of 2 ROCm installations .*\/opt\/rocm-6\.2\.0\/lib, \/usr\/lib.*LD_LIBRARY_PATH$/,
      ),
    ]);
  });

  it("of a wheel's parts are of one installation", () => {
    const wheel = "/venv/lib/python3.12/site-packages/_rocm_sdk";
    const files = [`${wheel}_core/lib/libamdhip64.so.7`, `${wheel}_libraries_gfx110X/lib/librocblas.so.5`];
    const loaded = loadedLibraries(maps(...files, "/usr/lib/libdrm_amdgpu.so.1"));
    expect(loaded).toHaveLength(3);
    expect(adviceFor({ problems: [], facts: { platform: "rocm", devices: [], loaded } })).toEqual([]);
  });
});

describe("what a problem resembles", () => {
  const hardware = (more: Partial<Hardware>): Hardware => ({
    ...{ pci: ["1002:150e"], driver: "loaded", nodes: [], environment: {} },
    ...more,
  });
  const cases: [string, Situation, RegExp][] = [
    [
      "a compiler that lacks a builtin",
      { problems: ["hiprtc 9.0 could not compile: error: use of undeclared identifier '__builtin_amdgcn_exp2f'"] },
      /older than the kernels need.*from 5\.2 on/,
    ],
    ["an unknown arch", { problems: ["hiprtc 9.0 (x) cannot compile for gfx1201; install"] }, /newer ROCm/],
    ["a compiler that dies", { problems: ["crashed with SIGSEGV while compiling unary for f32"] }, /itself crashed/],
    [
      "a compiler that dies in a process of its own",
      { problems: ["hiprtc 9.0 (x) died by SIGSEGV"] },
      /itself crashed/,
    ],
    ["a rocBLAS that aborts", { problems: ["crashed with SIGABRT while opening rocBLAS on rocm:0"] }, /WICK_BLAS=none/],
    [
      "rocBLAS without files",
      { problems: ["ended with exit code 1; it printed last: rocBLAS error: Cannot read TensileLibrary.dat"] },
      /WICK_BLAS=none/,
    ],
    [
      "a fault",
      { problems: ["crashed with SIGABRT while x; it printed last: Memory access fault by GPU node-1"] },
      /ROCm ends the process/,
    ],
    ["turned subtractions", { problems: ["a − b comes out as b − a: … #160151"] }, /#180169/],
    ["zeros of the other sign", { problems: ["element 3 is 0, not -0"] }, /harmless/],
    ["mixed libraries", { problems: ["libx.so: undefined symbol: hsa_amd_queue"] }, /mixed/],
    ["a hang", { problems: ["no answer within 600 s while running golden cases"] }, /hangs.*dmesg/],
    [
      "a kernel driver out of reach",
      { problems: ["it printed last: Unable to open /dev/kfd read-write"] },
      /amdgpu is loaded/,
    ],
    ["an old kernel driver", { problems: ["hipInit failed: hipErrorInsufficientDriver (35)"] }, /update the kernel/],
    [
      "too little memory on an APU",
      {
        problems: ["cannot allocate 10 bytes [OutOfMemory]"],
        hardware: hardware({ cards: [{ pci: "1002:150e", vramBytes: 2 ** 29, gttBytes: 2 ** 34, firmware: {} }] }),
      },
      /BIOS.*ttm\.pages_limit/,
    ],
    [
      "a GPU taken for one of another generation",
      {
        problems: [],
        hardware: hardware({ targets: ["gfx1103"], environment: { HSA_OVERRIDE_GFX_VERSION: "10.3.0" } }),
      },
      /HSA_OVERRIDE_GFX_VERSION=10\.3\.0 .*gfx1103, another generation: unset/,
    ],
  ];
  it.each(cases)("%s", (_, situation, advice) => {
    expect(adviceFor(situation)).toEqual([expect.stringMatching(advice)]);
  });

  it("a runtime of the distribution in front of AMD's", () => {
    const { system } = surroundings(new Root(at("none")), user);
    const advice = (path: string): string[] =>
      adviceFor({
        problems: [],
        facts: { platform: "rocm", devices: [], loaded: [{ path }] },
        system: { ...system, rocm: { "/opt/rocm": "7.2.0", "/opt/rocm-7.2.0": "7.2.0" } },
      });
    const ubuntu = "/usr/lib/x86_64-linux-gnu/libamdhip64.so.5.7.31921";
    expect(advice(ubuntu)).toEqual([
      `ROCm 7.2.0 in /opt/rocm is not used, ${ubuntu} is: set ROCM_PATH=/opt/rocm to change that`,
    ]);
    expect(advice("/opt/rocm-7.2.0/lib/libamdhip64.so.7.2.0")).toEqual([]);
  });

  it("nothing, where nothing is known of it", () => {
    const plenty = [{ pci: "1002:744c", vramBytes: 2 ** 34, gttBytes: 2 ** 33, firmware: {} }];
    const environment = { HSA_OVERRIDE_GFX_VERSION: "11.0.0" };
    const fine = hardware({ cards: plenty, targets: ["gfx1103"], environment });
    for (const problem of ["3 of 8 cases fail", "cannot allocate [OutOfMemory]", "ENOSPC"])
      expect(adviceFor({ problems: [problem], hardware: fine })).toEqual([]);
    expect(adviceFor({ problems: [] })).toEqual([]);
  });

  describe("of a platform without a device", () => {
    const { system } = surroundings(new Root(at("none")), user);
    const facts: PlatformFacts = { platform: "rocm", devices: [], library: "/opt/rocm/lib/libamdhip64.so" };
    const judge = (more: Partial<Hardware>, around: Partial<typeof system>) => {
      const judged = judgePlatform("rocm", { ok: true, value: facts }, hardware(more), false, { ...system, ...around });
      return { verdict: judged.checks[0]!.verdict, advice: judged.advice.join("\n") };
    };
    const denied = (group: string): Partial<Hardware> => ({
      nodes: [{ path: "/dev/kfd", access: "denied", mode: "660", group }],
    });

    it.each<[string, Partial<Hardware>, Partial<typeof system>, RegExp]>([
      ["the group that the file has", denied("render"), {}, /usermod -aG render \$USER, then log in anew/],
      ["a group of the container's host", denied("109"), { container: "docker" }, /pass --group-add 109$/],
      [
        "a container without the files",
        { driver: null, nodes: [{ path: "/dev/kfd", access: "missing" }] },
        { container: "podman" },
        /^\/dev\/kfd are missing in this container \(podman\); pass --device \/dev\/kfd --device \/dev\/dri$/,
      ],
      ["no kernel driver", { driver: null }, {}, /^the kernel driver amdgpu is not loaded/],
      ["a mask", { environment: { ROCR_VISIBLE_DEVICES: "3" } }, {}, /ROCR_VISIBLE_DEVICES=3 may hide devices/],
      ["WSL without /dev/dxg", { pci: [], driver: null }, { wsl: { dxg: false, rocdxg: false } }, /wsl --update/],
      [
        "WSL without librocdxg",
        { pci: [], driver: null },
        { wsl: { dxg: true, rocdxg: false } },
        /install it, and set HSA_ENABLE_DXG_DETECTION=1/,
      ],
    ])("%s", (_, more, around, advice) => {
      const judged = judge(more, around);
      expect(judged.advice).toMatch(advice);
      expect(judged.verdict).toBe("problem");
    });
  });
});

describe("an installation", () => {
  let built: Package;
  beforeAll(async () => {
    built = await buildPackage(at("package"));
  }, 60_000);

  it("whose files cannot be read without a crash is examined all the same", async () => {
    const tasks = JSON.stringify(pathToFileURL(join(dirname(built.entry), "tasks.js")));
    writeFileSync(
      at("dying.mjs"),
      `import { perform } from ${tasks};
       process.on("message", (request) => {
         if (["system", "cache"].includes(request.task)) process.abort();
         void perform(request, (message) => process.send(message));
       });
       process.on("disconnect", () => process.exit());`,
    );
    const only = ["system", "cache", "index-errors"] as const;
    const report = await examine({ device: "sim:32", entry: at("dying.mjs"), only });
    expect(report.sections.map((s) => `${s.name} ${s.verdict}`)).toEqual([
      ...["system problem", "libraries ok", "cache problem", "index-errors ok"],
    ]);
    expect(report.sections[0]!.checks[0]!.detail).toMatch(/^crashed with SIGABRT while starting/);
    expect(report.sections[2]!.checks[0]!.detail).toContain("crashed with SIGABRT");
    expect(report.system).toBeUndefined();
  });

  it("whose compiler turns subtractions round is told so by name", async () => {
    const turn = "s/BINARY_OP(Sub, sub(a, b))/BINARY_OP(Sub, sub(b, a))/";
    const script = `#!/bin/sh\nfor a; do case "$a" in *source.hip) sed -i '${turn}' "$a";; esac; done\nexec \${CXX:-g++} "$@"\n`;
    writeFileSync(at("turning"), script, { mode: 0o755 });
    vi.stubEnv("WICK_SIM_CXX", at("turning"));
    vi.stubEnv("WICK_CACHE", at("turned"));
    const report = await examine({ device: "sim:32", only: ["golden"], ops: ["sub"], entry: built.entry });
    const golden = report.sections.at(-1)!;
    expect(golden.checks.map((c) => `${c.name} ${c.verdict}`)).toEqual([
      "subtraction in f16 problem",
      "binary and compare problem",
    ]);
    expect(golden.checks[0]!.detail).toBe(
      "a − b comes out as b − a: the compiler has the fault of llvm-project #160151",
    );
    expect(golden.advice).toEqual([expect.stringMatching(/f16 is wrong.*#180169/)]);
  });

  const version = (number: number): string =>
    `extern "C" int hipRuntimeGetVersion(int* version) { return *version = ${number}, 0; }\n`;

  it("of HIP 5.1 is refused with the oldest that is supported", async () => {
    const env = { WICK_HIP_LIBRARY: stubLibrary(at("libhip51.so"), version(50_120_531)) };
    const { code, out } = await built.wick(["devices"], env);
    expect(code).toBe(0);
    expect(out).toContain(
      `no AMD ROCm: ${env.WICK_HIP_LIBRARY} is HIP 5.1.20531, and the oldest that Wick runs on is 5.2;`,
    );
    const doctor = await built.wick(["doctor", "--device", "rocm:0", "--only", "libraries"], env);
    expect(doctor.code).toBe(1);
    expect(doctor.out).toContain("the oldest that Wick runs on is 5.2");
  });

  it("of HIP 5.2 decodes step by step, and says so", async () => {
    // There a capture would leave the launches out.
    const source = `#include <cstdlib>\n${version(50_221_153)}extern "C" int hipStreamBeginCapture(void*, int) { abort(); }`;
    const hip = stubLibrary(at("libhip52.so"), source);
    const env = { WICK_HIP_LIBRARY: hip, WICK_ROCBLAS_LIBRARY: sim.rocblas };
    const generate = async (device: string): Promise<number[]> => {
      using model = await loadModel(tiny("llama"), { device, dtype: "f32" });
      const tokens: number[] = [];
      for await (const { token } of model.generate([5, 17, 40, 3], { maxTokens: 6, ignoreEos: true, temperature: 0 }))
        tokens.push(token);
      return tokens;
    };
    const { out } = await built.wick(["devices"], env);
    expect(out).toMatch(
      /^rocm:0\n( {2}.*\n)* {2}graphs +decoding is not recorded: HIP 5\.2 does not capture launches$/m,
    );
    for (const [name, value] of Object.entries(env)) vi.stubEnv(name, value);
    expect(await generate("rocm:0")).toEqual(await generate("cpu"));
    const doctor = await built.wick(["doctor", "--device", "rocm:0", "--only", "graphs"], env);
    expect(doctor.out).toMatch(/graphs +skipped(.*\n)+ +recording +skipped: decoding goes step by step: HIP 5\.2/);
  }, 120_000);
});
