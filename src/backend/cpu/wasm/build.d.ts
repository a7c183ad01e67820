/** Set by the build: whether relaxed SIMD, with fused multiply-add, may be used. */
declare const RELAXED: bool;
