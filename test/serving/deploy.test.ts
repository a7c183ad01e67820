/** The files in deploy/ and the pages about them are of one piece with the command. */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import { serveCommand } from "../../src/cli/serve.ts";
import { parseYaml, type Yaml } from "../helpers/yaml.ts";

const root = fileURLToPath(new URL("../..", import.meta.url));
const read = (...path: string[]): string => readFileSync(join(root, ...path), "utf8");
const manifests = readdirSync(join(root, "deploy/kubernetes"), { recursive: true, encoding: "utf8" })
  .filter((name) => name.endsWith(".yaml"))
  .sort();
const manifest = (name: string): Yaml => parseYaml(read("deploy/kubernetes", name));
const at = (value: Yaml, ...path: (string | number)[]): Yaml =>
  path.reduce<Yaml>((inner, name) => (inner as Record<string, Yaml>)[name] ?? null, value);

const options = new Set(serveCommand("0.0.0").options.map(({ long }) => long));
const container = (name: string): Yaml => at(manifest(name), "spec", "template", "spec", "containers", 0);
const deployment = container("base/deployment.yaml");

describe("a manifest", () => {
  it.each(manifests)("%s is YAML with a kind and a version", (name) => {
    expect(manifest(name)).toMatchObject({ apiVersion: expect.any(String), kind: expect.any(String) });
  });

  it.each(manifests.filter((name) => name.endsWith("kustomization.yaml")))("%s names files that exist", (name) => {
    const folder = join(root, "deploy/kubernetes", name, "..");
    const resources = at(manifest(name), "resources") as readonly string[];
    const patches = ((at(manifest(name), "patches") ?? []) as readonly Yaml[]).map((patch) => at(patch, "path"));
    for (const path of [...resources, ...patches])
      expect(existsSync(join(folder, String(path))), String(path)).toBe(true);
  });

  it("asks a container of each vendor for a GPU, and patches the container that there is", () => {
    for (const [vendor, resource] of [
      ["cuda", "nvidia.com/gpu"],
      ["rocm", "amd.com/gpu"],
    ] as const) {
      expect(container(`${vendor}/gpu.yaml`)).toMatchObject({ name: "wick", resources: { limits: { [resource]: 1 } } });
      expect(at(manifest(`${vendor}/kustomization.yaml`), "images", 0, "newTag")).toBe(vendor);
    }
    expect(at(deployment, "name")).toBe("wick");
  });

  it("gives a pod the time to drain", () => {
    const wait = Number(at(deployment, "lifecycle", "preStop", "exec", "command", 1));
    const drain = Number(/--drain-timeout=(\d+)/.exec(String(at(deployment, "args")))![1]);
    const grace = at(manifest("base/deployment.yaml"), "spec", "template", "spec", "terminationGracePeriodSeconds");
    expect(Number(grace)).toBeGreaterThan(wait + drain);
  });

  it("probes paths that the server has, on the port that it listens on", () => {
    const routes = read("src/serving/http/app.ts");
    for (const probe of ["startupProbe", "readinessProbe", "livenessProbe"]) {
      expect(routes).toContain(`path: "${at(deployment, probe, "httpGet", "path")}"`);
      expect(at(deployment, probe, "httpGet", "port")).toBe(at(deployment, "ports", 0, "name"));
    }
    expect(routes).toContain(`path: "${at(manifest("monitoring.yaml"), "spec", "endpoints", 0, "path")}"`);
    expect(at(deployment, "args")).toContain(`--port=${at(deployment, "ports", 0, "containerPort")}`);
  });
});

/** Options of `wick serve` in a text: behind the command, to the end of its line. */
const named = (text: string): string[] =>
  Array.from(text.matchAll(/\bserve\b([^`\n]*)/g), ([, rest]) => rest!.match(/--[a-z-]+/g) ?? []).flat();

describe("an option that is named", () => {
  it.each(["docs/deploy.md", "docs/clients.md", "deploy/Dockerfile"])("in %s exists", (path) => {
    const found = named(read(path).replaceAll('", "', " "));
    expect(found.length).toBeGreaterThan(0);
    expect(found.filter((option) => !options.has(option))).toEqual([]);
  });

  it("in the deployment exists", () => {
    const given = (at(deployment, "args") as readonly string[]).filter((argument) => argument.startsWith("--"));
    expect(given.map((argument) => argument.split("=")[0]!).filter((option) => !options.has(option))).toEqual([]);
  });

  it("by itself in a page exists, too", () => {
    const alone = ["deploy.md", "clients.md"].flatMap((name) => read("docs", name).match(/(?<=`)--[a-z-]+/g) ?? []);
    expect(alone.filter((option) => !options.has(option))).toEqual([]);
  });
});
