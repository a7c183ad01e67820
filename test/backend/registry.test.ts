import { inspect } from "node:util";
import { describe, expect, it } from "vitest";
import { CpuBackend } from "../../src/backend/cpu/backend.ts";
import { Device, observe, registerDevice, Tensor } from "../../src/index.ts";
import { ReferenceBackend } from "../reference/backend.ts";

describe("Registered devices", () => {
  it("are opened once, by their whole name", () => {
    const opened: string[] = [];
    registerDevice(
      "mine",
      (address) => {
        opened.push(`${address.name} ${address.id} ${address.extras.join()}`);
        return Object.defineProperty(new ReferenceBackend(), "name", { value: address.name });
      },
      { ids: /^\d+$/, first: "0", extras: ["fast"] },
    );
    expect(Device.from("mine")).toBe(Device.from("mine:0"));
    expect(Device.from("mine:1+fast").name).toBe("mine:1+fast");
    expect(opened).toEqual(["mine:0 0 ", "mine:1+fast 1 fast"]);
    expect(Tensor.from([1, 2], { device: "mine:0" }).add(1).toArraySync()).toEqual([2, 3]);
  });

  it("are told from those that nobody registered", () => {
    expect(() => Device.from("yours:0")).toThrow(/unknown device "yours:0"; devices are cpu, rocm:0/);
    expect(() => Device.from("mine:x")).toThrow(/unknown device/);
    expect(() => Device.from("mine+slow")).toThrow(/unknown device/);
    expect(() => Device.from("cpu:0")).toThrow(/unknown device/);
    expect(() => Device.from(7 as unknown as string)).toThrow(/unknown device 7/);
  });

  it("have a prefix of their own", () => {
    expect(() => registerDevice("cpu", () => new CpuBackend())).toThrow(/already/);
    expect(() => registerDevice("Not a prefix", () => new CpuBackend())).toThrow(/prefix/);
  });

  it("print what a person wants to see", () => {
    const shown = inspect(Device.cpu());
    expect(shown).toMatch(/^Device\(cpu, (AVX.*, )?WebAssembly SIMD.*thread.*: .* in use, .* cached, .* at most\)$/);
    expect(inspect({ device: Device.cpu() })).toContain("Device(cpu");
    expect(inspect(Device.from("mine"))).toMatch(/^Device\(mine:0: /);
  });
});

describe("The one way in", () => {
  it("lets a listener see every op, and those that are composed", () => {
    const seen: string[] = [];
    const listening = observe(({ op, done }) => seen.push(`${op}${done ? "" : " (composed)"}`));
    const x = Tensor.from([[1, 2]]);
    x.matmul(x.t()).exp();
    Tensor.ones([2], { device: "mine" }).affine(2, 1);
    listening[Symbol.dispose]();
    x.sum();
    expect(seen).toEqual([
      ...["write", "matmul", "unary", "fill"],
      ...["affine (composed)", "fill", "binary", "fill", "binary"],
    ]);
  });
});
