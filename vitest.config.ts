import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    setupFiles: ["test/setup.ts"],
    // Forked processes: each gets its own WebAssembly memory and worker pool, and `--expose-gc` for the memory tests.
    pool: "forks",
    maxWorkers: 2,
    execArgv: ["--expose-gc"],
    testTimeout: 60_000,
    coverage: {
      provider: "v8",
      include: ["src/**/*.ts"],
      exclude: ["src/backend/cpu/wasm/**", "src/cli/main.ts"],
      reporter: ["text-summary", "text"],
      thresholds: { lines: 90, branches: 90 },
    },
  },
});
