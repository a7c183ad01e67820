// The simulator's rocBLAS and hipBLASLt: products in every orientation, and what the real ones refuse.
import { afterEach, describe, expect, test } from "vitest";
import { bind, download, hip, malloc, message, ok, out, paths, upload } from "../../helpers/hip.ts";

describe("rocBLAS", () => {
  const blas = bind(paths.rocblas, {
    rocblas_create_handle: "int(void*)",
    rocblas_destroy_handle: "int(void*)",
    rocblas_set_stream: "int(void*, void*)",
    rocblas_gemm_ex:
      "int(void*, int, int, int, int, int, void*, void*, int, int, void*, int, int, void*, void*, int, int, void*, int, int, int, int, int, uint)",
    rocblas_gemm_strided_batched_ex:
      "int(void*, int, int, int, int, int, void*, void*, int, int, int64_t, void*, int, int, int64_t, void*, void*, int, int, int64_t, void*, int, int, int64_t, int, int, int, int, uint)",
  });
  const [N, T, f16, f32, f64, bf16] = [111, 112, 150, 151, 152, 168];

  test.each([
    [f32, Float32Array],
    [f64, Float64Array],
  ] as const)("products of type %d in every orientation", (type, Floats) => {
    const handle = out((h) => blas.rocblas_create_handle(h));
    const [m, n, k, batch] = [3, 4, 5, 2];
    const filled = (length: number) => Floats.from(Array.from({ length }, (_, i) => ((i * 7) % 11) - 5));
    const [a, b, c] = [filled(m * k * batch), filled(k * n * batch), filled(m * n * batch)];
    const [pa, pb, pc] = [upload(a), upload(b), upload(c)];
    const [alpha, beta] = [Floats.of(2), Floats.of(-1)];
    for (const opA of [N, T])
      for (const opB of [N, T]) {
        ok(hip.hipMemcpy(pc, c, c.byteLength, 1));
        const [lda, ldb] = [opA === N ? m : k, opB === N ? k : n];
        const code = blas.rocblas_gemm_strided_batched_ex(
          handle,
          opA,
          opB,
          m,
          n,
          k,
          alpha,
          pa,
          type,
          lda,
          m * k,
          pb,
          type,
          ldb,
          k * n,
          beta,
          pc,
          type,
          m,
          m * n,
          pc,
          type,
          m,
          m * n,
          batch,
          type,
          0,
          0,
          0,
        );
        expect(code).toBe(0);
        const expected = c.map((_, at) => {
          const [s, i, j] = [Math.floor(at / (m * n)), at % m, Math.floor((at % (m * n)) / m)];
          let sum = 0;
          for (let p = 0; p < k; p++)
            sum +=
              a[s * m * k + (opA === N ? i + p * lda : p + i * lda)]! *
              b[s * k * n + (opB === N ? p + j * ldb : j + p * ldb)]!;
          return 2 * sum - c[at]!;
        });
        expect(download(pc, new Floats(c.length))).toEqual(expected);
      }
    for (const p of [pa, pb, pc]) ok(hip.hipFree(p));
    expect(blas.rocblas_destroy_handle(handle)).toBe(0);
    expect(blas.rocblas_destroy_handle(handle)).toBe(1);
  });

  test.each([
    [f16, 0x3c00, 0x4200],
    [bf16, 0x3f80, 0x4040],
  ] as const)("halves of type %d, and mistakes", (type, one, three) => {
    const handle = out((h) => blas.rocblas_create_handle(h));
    const [a, d] = [upload(Uint16Array.of(one, one, one)), malloc(2)];
    const gemm = (changes: Record<number, unknown> = {}) => {
      const args: unknown[] = [
        handle,
        N,
        N,
        1,
        1,
        3,
        Float32Array.of(1),
        a,
        type,
        1,
        a,
        type,
        3,
        Float32Array.of(0),
        null,
        type,
        1,
        d,
        type,
        1,
        f32,
        0,
        0,
        0,
      ];
      for (const [at, value] of Object.entries(changes)) args[Number(at)] = value;
      return blas.rocblas_gemm_ex(...args);
    };
    expect(gemm()).toBe(0);
    expect(download(d, new Uint16Array(1))[0]).toBe(three);
    const [invalidHandle, notImplemented, invalidPointer, invalidSize, invalidValue] = [1, 2, 3, 4, 11];
    expect(gemm({ 0: 77n })).toBe(invalidHandle);
    expect(gemm({ 1: 110 })).toBe(invalidValue);
    expect(gemm({ 8: 42 })).toBe(invalidValue);
    expect(gemm({ 3: -1 })).toBe(invalidSize);
    expect(gemm({ 12: 2 })).toBe(invalidSize);
    expect(gemm({ 6: null })).toBe(invalidPointer);
    expect(gemm({ 7: null })).toBe(invalidPointer);
    expect(gemm({ 5: 4, 12: 4 })).toBe(invalidPointer);
    expect(message()).toContain("rocblas gemm, A");
    expect(gemm({ 20: f64 })).toBe(notImplemented);
    expect(gemm({ 3: 0 })).toBe(0);
    ok(hip.hipFree(a));
    ok(hip.hipFree(d));
    expect(blas.rocblas_destroy_handle(handle)).toBe(0);
  });
});

describe("a BLAS library's workspace", () => {
  const blas = bind(paths.rocblas, {
    rocblas_create_handle: "int(void*)",
    rocblas_destroy_handle: "int(void*)",
    rocblas_set_stream: "int(void*, void*)",
    rocblas_set_workspace: "int(void*, void*, size_t)",
    rocblas_set_atomics_mode: "int(void*, int)",
    rocblas_gemm_ex:
      "int(void*, int, int, int, int, int, void*, void*, int, int, void*, int, int, void*, void*, int, int, void*, int, int, int, int, int, uint)",
  });
  const [none, f32, memoryError] = [111, 151, 5];
  const [alpha, beta] = [Float32Array.of(1), Float32Array.of(0)];
  const need = (bytes: number) => {
    process.env.WICK_SIM_BLAS_WORKSPACE = String(bytes);
  };
  afterEach(() => {
    delete process.env.WICK_SIM_BLAS_WORKSPACE;
  });
  // biome-ignore format: one line per operand
  const multiply = (handle: bigint, x: bigint, y: bigint) =>
    blas.rocblas_gemm_ex(handle, none, none, 1, 1, 1, alpha,
      x, f32, 1,
      x, f32, 1, beta,
      y, f32, 1,
      y, f32, 1,
      f32, 0, 0, 0);

  test("of its own grows by another address, and what was recorded before faults", () => {
    const stream = out((s) => hip.hipStreamCreateWithFlags(s, 1));
    const handle = out((h) => blas.rocblas_create_handle(h));
    ok(blas.rocblas_set_stream(handle, stream));
    const [x, y] = [upload(Float32Array.of(3)), upload(Float32Array.of(0))];
    need(1000);
    ok(multiply(handle, x, y));
    ok(hip.hipStreamBeginCapture(stream, 2));
    ok(multiply(handle, x, y));
    const graph = out((g) => hip.hipStreamEndCapture(stream, g));
    const executable = out((e) => hip.hipGraphInstantiate(e, graph, null, null, 0));
    ok(hip.hipGraphLaunch(executable, stream));
    ok(hip.hipStreamSynchronize(stream));
    expect(download(y, new Float32Array(1))[0]).toBe(9);
    need(100_000);
    ok(multiply(handle, x, y));
    expect(hip.hipGraphLaunch(executable, stream) || hip.hipStreamSynchronize(stream)).not.toBe(0);
    expect(message()).toContain("rocblas workspace");
    ok(hip.hipGraphExecDestroy(executable));
    ok(hip.hipGraphDestroy(graph));
    for (const p of [x, y]) ok(hip.hipFree(p));
    ok(blas.rocblas_destroy_handle(handle));
    ok(hip.hipStreamDestroy(stream));
  });

  test("that was given is never exceeded", () => {
    const handle = out((h) => blas.rocblas_create_handle(h));
    const [x, workspace] = [upload(Float32Array.of(3)), malloc(1000)];
    ok(blas.rocblas_set_workspace(handle, workspace, 1000));
    need(1000);
    ok(multiply(handle, x, x));
    need(1001);
    expect(multiply(handle, x, x)).toBe(memoryError);
    expect(blas.rocblas_set_atomics_mode(handle, 2)).toBe(11);
    expect(blas.rocblas_set_workspace(77n, workspace, 1000)).toBe(1);
    for (const p of [x, workspace]) ok(hip.hipFree(p));
    ok(blas.rocblas_destroy_handle(handle));
  });
});

describe("hipBLASLt", () => {
  const lt = bind(paths.hipblaslt, {
    hipblasLtCreate: "int(void*)",
    hipblasLtDestroy: "int(void*)",
    hipblasLtMatmulDescCreate: "int(void*, int, int)",
    hipblasLtMatmulDescDestroy: "int(void*)",
    hipblasLtMatmulDescSetAttribute: "int(void*, int, void*, size_t)",
    hipblasLtMatrixLayoutCreate: "int(void*, int, uint64_t, uint64_t, int64_t)",
    hipblasLtMatrixLayoutDestroy: "int(void*)",
    hipblasLtMatrixLayoutSetAttribute: "int(void*, int, void*, size_t)",
    hipblasLtMatmulPreferenceCreate: "int(void*)",
    hipblasLtMatmulPreferenceDestroy: "int(void*)",
    hipblasLtMatmulPreferenceSetAttribute: "int(void*, int, void*, size_t)",
    hipblasLtMatmulAlgoGetHeuristic: "int(void*, void*, void*, void*, void*, void*, void*, int, void*, void*)",
    hipblasLtMatmul:
      "int(void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, size_t, void*)",
  });
  const [f32, f64, compute32, invalidValue, notSupported] = [0, 1, 2, 3, 7];

  test("multiplies by an algorithm that was found for the problem, and refuses mistakes", () => {
    const handle = out((h) => lt.hipblasLtCreate(h));
    const desc = out((d) => lt.hipblasLtMatmulDescCreate(d, compute32, f32));
    const preference = out((p) => lt.hipblasLtMatmulPreferenceCreate(p));
    const layout = (type: number, rows: number, columns: number, ld = rows) =>
      out((l) => lt.hipblasLtMatrixLayoutCreate(l, type, rows, columns, ld));
    const [two, row, wide, double] = [layout(f32, 2, 2), layout(f32, 1, 2), layout(f32, 2, 2, 3), layout(f64, 2, 2)];
    const [result, found] = [new BigUint64Array(7), new Int32Array(1)];
    const search = (a: bigint, b: bigint, d: bigint, from = desc) =>
      lt.hipblasLtMatmulAlgoGetHeuristic(handle, from, a, b, d, d, preference, 1, result, found);
    const [x, y] = [upload(Float32Array.of(1, 2, 3, 4)), malloc(16)];
    const [one, zero] = [Float32Array.of(1), Float32Array.of(0)];
    const multiply = (changes: Record<number, unknown> = {}) => {
      const args: unknown[] = [handle, desc, one, x, two, x, two, zero, y, two, y, two, result, 0n, 0, null];
      for (const [at, value] of Object.entries(changes)) args[Number(at)] = value;
      return lt.hipblasLtMatmul(...args);
    };
    expect(search(two, two, two)).toBe(0);
    expect(found[0]).toBe(1);
    expect(multiply()).toBe(0);
    expect([...download(y, new Float32Array(4))]).toEqual([7, 10, 15, 22]);

    expect(multiply({ 0: desc })).toBe(1);
    expect(multiply({ 1: two })).toBe(invalidValue);
    expect(multiply({ 4: 77n })).toBe(invalidValue);
    expect(multiply({ 4: row })).toBe(invalidValue);
    expect(message()).toContain("sizes do not fit");
    expect(multiply({ 4: wide })).toBe(invalidValue);
    expect(message()).toContain("of another problem");
    expect(multiply({ 12: null })).toBe(invalidValue);
    expect(multiply({ 3: 0n })).toBe(invalidValue);
    expect(search(two, two, row)).toBe(invalidValue);
    expect(search(double, two, two)).toBe(invalidValue);
    expect(search(double, double, double)).toBe(notSupported);
    expect(found[0]).toBe(0);
    const transposed = (value: number, bytes: number) =>
      lt.hipblasLtMatmulDescSetAttribute(desc, 0, BigInt64Array.of(BigInt(value)), bytes);
    expect([transposed(113, 4), transposed(112, 8), transposed(112, 4)]).toEqual([invalidValue, invalidValue, 0]);
    expect(multiply()).toBe(invalidValue);
    const batch = (attribute: number, bytes: number) =>
      lt.hipblasLtMatrixLayoutSetAttribute(two, attribute, BigInt64Array.of(2n), bytes);
    expect([batch(9, 4), batch(0, 8), batch(0, 4)]).toEqual([invalidValue, invalidValue, 0]);
    expect(search(two, two, wide)).toBe(invalidValue);
    expect(message()).toContain("batch counts differ");
    expect(lt.hipblasLtMatmulPreferenceSetAttribute(preference, 1, BigInt64Array.of(1n), 4)).toBe(invalidValue);
    expect(lt.hipblasLtMatmulDescCreate(new BigUint64Array(1), 300, f32)).toBe(invalidValue);
    expect(lt.hipblasLtMatrixLayoutCreate(new BigUint64Array(1), 151, 1, 1, 1)).toBe(invalidValue);

    for (const p of [x, y]) ok(hip.hipFree(p));
    for (const each of [two, row, wide, double]) ok(lt.hipblasLtMatrixLayoutDestroy(each));
    expect(lt.hipblasLtMatrixLayoutDestroy(two)).toBe(invalidValue);
    ok(lt.hipblasLtMatmulPreferenceDestroy(preference));
    ok(lt.hipblasLtMatmulDescDestroy(desc));
    ok(lt.hipblasLtDestroy(handle));
  });
});

/** Runs code in a process of its own with `hip(signature)` at hand. */
