/// <reference lib="esnext.disposable" preserve="true" />
/**
 * What public signatures mention beyond ES2022, for projects that have neither Node's types nor the browser's; where
 * they are there, these merge with them. Every entry of the package imports it.
 */
declare global {
  interface AbortSignal {
    readonly aborted: boolean;
  }
}

export {};
