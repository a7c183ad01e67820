/** Single elements of any dtype, for loops that cannot take runs. */
import { BF16, F8E4M3, F16, I16, U8 } from "./abi";
import { f8ToF32, f16ToF32x4 } from "./block";

/** One element in its compute class T. */
// @inline
export function element<T>(dtype: i32, at: usize): T {
  if (sizeof<T>() === 8) return load<T>(at);
  if (isFloat<T>()) {
    if (dtype === BF16) return <T>reinterpret<f32>((<u32>load<u16>(at)) << 16);
    if (dtype === F16) return <T>f32x4.extract_lane(f16ToF32x4(i32x4.splat(<i32>load<u16>(at))), 0);
    if (dtype === F8E4M3) return <T>f8ToF32(load<u8>(at));
  } else {
    if (dtype === U8) return <T>load<u8>(at);
    if (dtype === I16) return <T>load<i16>(at);
  }
  return load<T>(at);
}
