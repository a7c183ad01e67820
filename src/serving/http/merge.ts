/** Several streams as one, in the order in which their items come; each is asked for its next only when the last was taken. */
export interface Merged<T> {
  readonly index: number;
  readonly value: T;
}

export async function* merge<T>(sources: readonly AsyncIterator<T>[]): AsyncGenerator<Merged<T>, void, undefined> {
  const ready: { readonly index: number; readonly result: IteratorResult<T> }[] = [];
  let failure: { readonly error: unknown } | undefined;
  let wake = () => {};
  const pull = (index: number) =>
    sources[index]!.next().then(
      (result) => {
        ready.push({ index, result });
        wake();
      },
      (error: unknown) => {
        failure ??= { error };
        wake();
      },
    );
  try {
    for (const index of sources.keys()) pull(index);
    for (let open = sources.length; open > 0; ) {
      if (ready.length === 0 && !failure) {
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
      }
      if (failure) throw failure.error;
      const { index, result } = ready.shift()!;
      if (result.done) open--;
      else {
        yield { index, value: result.value };
        pull(index);
      }
    }
  } finally {
    for (const source of sources) source.return?.()?.catch(() => {});
  }
}
