/** Where a model comes from, be it the hub or an address: what is asked there, and its place in the cache. */
import { createHash } from "node:crypto";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { RepoCache } from "./cache.ts";
import { type Asking, type Listing, listAddress, listRepo, refused, refusedAddress } from "./listing.ts";
import { formatRepo, type RemoteName } from "./name.ts";
import { type Selection, selectFiles } from "./selection.ts";
import type { HubSettings } from "./settings.ts";

export interface Source {
  /** In messages, and as it can be given again. */
  readonly subject: string;
  readonly revision: string;
  readonly cache: RepoCache;
  list(asking: Asking): Promise<Listing>;
  /** The files that are needed among those that are there. */
  select(paths: readonly string[], where: string): Selection;
  /** Says why the server does not give a file. */
  refuse(response: Response, asking: Asking): Promise<never> | never;
  /** Says in the cache what it holds, where its name does not. */
  sign(): Promise<void>;
}

export function sourceOf(name: RemoteName, settings: HubSettings, choose = selectFiles): Source {
  if (name.kind === "repo") {
    return {
      subject: formatRepo(name),
      revision: name.revision,
      cache: RepoCache.of(settings.cache, name.repo),
      list: (asking) => listRepo(name, asking),
      select: (paths, where) => choose(paths, name.wanted, where),
      refuse: (response, asking) => refused(response, name, { ...asking, subject: name.repo }),
      sign: async () => {},
    };
  }
  const { url } = name;
  const hash = createHash("sha256").update(url).digest("hex").slice(0, 16);
  const cache = new RepoCache(settings.urlCache, `urls--${new URL(url).hostname}--${hash}`);
  return {
    subject: url,
    revision: "main",
    cache,
    list: (asking) => listAddress(url, asking),
    select: (paths) => ({ files: paths, entry: paths[0]! }),
    refuse: (response) => refusedAddress(response.url || url, response.status),
    sign: async () => {
      await mkdir(cache.folder, { recursive: true });
      await writeFile(join(cache.folder, "url"), url);
    },
  };
}
