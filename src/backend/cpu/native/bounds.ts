/** Machine code checks nothing, so what it is given is checked here: every element of a view lies in its block. */
import { fail } from "../../../core/errors.ts";
import type { View } from "../../backend.ts";
import type { Storage } from "../../storage.ts";
import { addressOf, addressOfStorage } from "../blocks.ts";

/** The address of a view's first element, once all of them are known to lie in its storage. */
export function addressInside(view: View): number {
  const { shape, strides, offset } = view.layout;
  let [low, high] = [offset, offset];
  for (let i = 0; i < shape.length; i++) {
    const reach = (shape[i]! - 1) * strides[i]!;
    if (reach < 0) low += reach;
    else high += reach;
  }
  const { length } = view.storage;
  if (view.layout.numel > 0 && !(low >= 0 && high < length)) {
    fail("ValueOutOfRange", `cpu: a view of the elements ${low} to ${high} reaches out of its ${length}`);
  }
  return addressOf(view);
}

/** The address of a storage of at least `n` elements. */
export function addressFor(storage: Storage, n: number): number {
  if (storage.length < n) fail("ValueOutOfRange", `cpu: ${n} elements do not fit into ${storage.length}`);
  return addressOfStorage(storage);
}
