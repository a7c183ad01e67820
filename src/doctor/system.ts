/** The machine around the GPUs: what it runs, whose rights this process has, and what encloses it. */

import { cpus, release, totalmem } from "node:os";
import { formatBytes } from "../backend/usage.ts";
import { type Environment, environment } from "../core/environment.ts";
import { type GpuVendor, groupName, type Hardware, hardwareOf } from "./hardware.ts";
import { Root } from "./root.ts";

export interface SystemFacts {
  readonly node: string;
  readonly system: string;
  readonly distribution: string;
  readonly processor: string;
  readonly memory: string;
  /** Whose rights this process has, as far as they matter: "root", "video", "render". */
  readonly groups: readonly string[];
  /** "docker", "podman", "kubernetes" …; null outside. */
  readonly container: string | null;
  /** The Windows Subsystem for Linux, and which of its ways to a GPU are there. */
  readonly wsl: { readonly dxg: boolean; readonly rocdxg: boolean } | null;
  /** ROCm installations by folder. */
  readonly rocm: Readonly<Record<string, string>>;
}

export interface Surroundings {
  readonly system: SystemFacts;
  readonly hardware: Readonly<Record<GpuVendor, Hardware>>;
}

interface Process {
  readonly env: Environment;
  readonly gids: readonly number[];
  readonly uid: number;
}
const thisProcess = (): Process => ({
  env: environment(),
  gids: process.getgroups?.() ?? [],
  uid: process.getuid?.() ?? -1,
});

export const surroundings = (root = new Root(), of = thisProcess()): Surroundings => ({
  system: systemFacts(root, of),
  hardware: { rocm: hardwareOf("rocm", root, of.env), cuda: hardwareOf("cuda", root, of.env) },
});

function systemFacts(root: Root, { env, gids, uid }: Process): SystemFacts {
  return {
    node: process.version,
    system: `${process.platform} ${release()} ${process.arch}`,
    distribution: /^PRETTY_NAME="?([^"\n]*)/m.exec(root.text("/etc/os-release") ?? "")?.[1] ?? "unknown",
    processor: `${cpus()[0]?.model.trim() ?? "unknown"}, ${cpus().length} threads`,
    memory: formatBytes(totalmem()),
    // A group of its own bears the user's name, so only those that open devices are told.
    groups: [
      ...(uid === 0 ? ["root"] : []),
      ...["render", "video"].filter((name) => gids.some((gid) => groupName(root, gid) === name)),
    ],
    container: containerOf(root, env),
    wsl: wslOf(root),
    rocm: rocmReleases(root),
  };
}

function containerOf(root: Root, env: Environment): string | null {
  if (env.KUBERNETES_SERVICE_HOST !== undefined) return "kubernetes";
  if (root.has("/run/.containerenv")) return "podman";
  if (root.has("/.dockerenv")) return "docker";
  const group = /(docker|kubepods|containerd|libpod|lxc)/.exec(root.text("/proc/1/cgroup") ?? "")?.[1];
  return group ?? (env.container || null);
}

function wslOf(root: Root): SystemFacts["wsl"] {
  if (!/microsoft/i.test(root.line("/proc/sys/kernel/osrelease") ?? "")) return null;
  const libraries = [
    "/opt/rocm/lib/librocdxg.so*",
    "/usr/lib/librocdxg.so*",
    "/usr/lib/x86_64-linux-gnu/librocdxg.so*",
  ];
  return { dxg: root.has("/dev/dxg"), rocdxg: libraries.some((pattern) => root.matching(pattern).length > 0) };
}

/** The release that each installation under /opt says it is. */
function rocmReleases(root: Root): Record<string, string> {
  const folders = [...root.matching("/opt/rocm*"), ...root.matching("/opt/rocm/core-*")];
  return Object.fromEntries(
    folders.flatMap((folder) => {
      const version = root.line(`${folder}/.info/version`);
      return version ? [[folder, version]] : [];
    }),
  );
}
