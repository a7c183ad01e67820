import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll } from "vitest";

/** A folder for the tests of the calling file; the result joins names to its path. */
export function temporaryFolder(): (...names: string[]) => string {
  let folder = "";
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), "wick-test-"));
  });
  afterAll(() => rm(folder, { recursive: true, force: true }));
  return (...names) => join(folder, ...names);
}
