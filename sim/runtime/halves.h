// f16 and bf16 on the host, for the stand-ins of AMD's libraries.
#pragma once
#include <stdint.h>
#include <string.h>

inline float fromHalf(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
  float value;
  if (exponent == 0) {
    value = float(mantissa) * 0x1p-24f;
    return sign ? -value : value;
  }
  uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
  memcpy(&value, &bits, 4);
  return value;
}
inline uint16_t toHalf(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);
  if (magnitude >= 0x38800000) return uint16_t(sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13));
  float small, half = 0.5f;
  memcpy(&small, &magnitude, 4);
  small += half;  // the addition rounds to units of 2^-24
  memcpy(&bits, &small, 4);
  return uint16_t(sign | (bits - 0x3f000000));
}
inline float fromBrain(uint16_t b) {
  uint32_t bits = uint32_t(b) << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
inline uint16_t toBrain(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return uint16_t(x != x ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
