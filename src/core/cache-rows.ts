/**
 * Rows of a cache in 8 bits: the d elements of a head as f8e4m3, then the power of two that they count in, as f32, then room
 * up to F8_ROW_TAIL bytes, so that rows of whole eights stay aligned to eight. As tensors they are of dtype f8e4m3.
 */
export const F8_ROW_TAIL = 8;

/** What a row of d elements takes. */
export const f8RowBytes = (d: number): number => Math.ceil(d / 8) * 8 + F8_ROW_TAIL;
