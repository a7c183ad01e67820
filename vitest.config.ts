import { defineConfig } from "vitest/config";
import { BaseSequencer, type TestSpecification } from "vitest/node";

/** Files that take longest, first: a long one that starts last keeps one core waiting. */
const long = [
  "golden",
  "quantized",
  "quant-kernels",
  "graphs",
  "models",
  "doctor",
  "nn-limits",
  "attention-kernels",
  "nn",
  "quant-product",
  "generation",
  "examples",
  "overlap",
  "http-clients",
  "http-faults",
  "hiprtc",
  "compiler",
  "page",
];

class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const rank = ({ moduleId }: TestSpecification): number => {
      const at = long.findIndex((name) => moduleId.endsWith(`/${name}.test.ts`));
      return at < 0 ? long.length : at;
    };
    return (await super.sort(files)).sort((a, b) => rank(a) - rank(b));
  }
}

/**
 * Files that share the processes they run in, which saves each of them the import of the library. The others change the
 * environment, replace modules, count what is alive, or start processes of Wick.
 */
const together = [
  "test/{ops,nn,tensor,quantized,reference,verify,formats,serving/grammar}/**/*.test.ts",
  "test/models/{architectures,chat,experts,generation,gguf,text}/**/*.test.ts",
  "test/models/{byte-cache,encoders,f8-weights,latent-attention,models,paged,paged-steps,placement,plan,several-devices}.test.ts",
  "test/models/sharding.test.ts",
  "test/backend/cpu/{kernels,matvec,rows,staging,native/assembler,native/fused,native/pool,native/quant,native/stored}.test.ts",
  "test/backend/gpu/{attention,conv,expert,gemm,product,quant}-kernels.test.ts",
  "test/backend/gpu/{attention-step,attention-warpgroups,fused-path,hot-loops,index-errors,launch-types,overlap}.test.ts",
  "test/backend/gpu/{epilogue,fused-linear,library-search,prepare,quant-batch,invariant,latent-attention,quant-product,quant-wide,rounding,sample}.test.ts",
  "test/serving/{deploy,engine,models,pages,scheduler,http-answers,http-registry,page/*}.test.ts",
  "test/{charts,layers,printing,backend/registry,cli/embed,cli/sampling-options,cli/serve,models/hub/names,models/hub/pull}.test.ts",
];

export default defineConfig({
  test: {
    projects: [
      { extends: true, test: { name: "together", include: together, isolate: false, restoreMocks: true } },
      { extends: true, test: { name: "alone", include: ["test/**/*.test.ts"], exclude: together } },
    ],
    globalSetup: ["test/helpers/build-simulator.ts"],
    setupFiles: ["test/helpers/setup.ts"],
    sequence: { sequencer: LongestFirst },
    // Forked processes: each gets its own WebAssembly memory and worker pool, and `--expose-gc` for the memory tests.
    pool: "forks",
    // One more than two cores: tests wait for processes, pages and time limits.
    maxWorkers: 3,
    // Most code in tests runs a few times: what V8 optimizes later, it often need not at all (4 to 7 % of the processor's time).
    execArgv: ["--expose-gc", "--interrupt-budget=600000"],
    testTimeout: 60_000,
    coverage: {
      provider: "v8",
      include: ["src/**/*.ts"],
      // Beside what is no TypeScript of this process: ranks, which the tests run as processes of their own.
      exclude: [
        ...["src/backend/cpu/wasm/**", "src/serving/page/**", "src/cli/main.ts", "src/cli/precompile.ts"],
        ...["src/distributed/**", "src/models/sharding/**", "src/backend/gpu/ccl.ts"],
        ...["src/cli/launch.ts", "src/cli/ranks.ts", "src/cli/joined.ts"],
      ],
      reporter: ["text-summary", "text"],
      reportOnFailure: true,
      thresholds: { lines: 90, branches: 90 },
    },
  },
});
