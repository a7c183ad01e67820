/**
 * How the vector, mask and three-operand general instructions are encoded, as the manuals write it: rows by the pattern
 * of their operands, which is also the type of the assembler's methods.
 *
 * A pattern names each operand's kind and the field that it goes to. Kinds: v vector, V vector or memory, m memory,
 * s memory whose index is the distance of a tile's rows, t tile, r general register, R general register or memory, k mask,
 * K mask or memory, i a byte. Fields: `reg` and `rm` of the
 * ModRM byte, `vvvv` of the prefix, `is4` the high half of the last byte.
 *
 * A row: prefix.map.opcode, then W (`w0`; `w0/1`: 0 in VEX, 1 in EVEX; `wg`: by the general register's width), then
 * what a memory operand is (`full4`: a whole vector, of which AVX-512 can repeat an element of 4 bytes; `half`,
 * `quarter`, `eighth` of a vector; `b16`: 16 bytes), then, where it is so: `vex` or `evex` alone, `/2` the opcode's
 * extension, `wide` without a 128-bit form, `x`, `y` or `z` of that width alone, `lz`/`l1` the length bit of mask
 * instructions, `g8` … `g64` the general register's width, `fixed` the destination cannot be masked, `keep` it can but not
 * with zeroing.
 */

const rvm = {
  vaddps: "np.0f.58 w0 full4",
  vmulps: "np.0f.59 w0 full4",
  vsubps: "np.0f.5c w0 full4",
  vminps: "np.0f.5d w0 full4",
  vdivps: "np.0f.5e w0 full4",
  vmaxps: "np.0f.5f w0 full4",
  vandps: "np.0f.54 w0 full4",
  vandnps: "np.0f.55 w0 full4",
  vorps: "np.0f.56 w0 full4",
  vxorps: "np.0f.57 w0 full4",
  vunpcklps: "np.0f.14 w0 full4",
  vunpckhps: "np.0f.15 w0 full4",
  vaddpd: "66.0f.58 w0/1 full8",
  vmulpd: "66.0f.59 w0/1 full8",
  vsubpd: "66.0f.5c w0/1 full8",
  vminpd: "66.0f.5d w0/1 full8",
  vdivpd: "66.0f.5e w0/1 full8",
  vmaxpd: "66.0f.5f w0/1 full8",
  vunpcklpd: "66.0f.14 w0/1 full8",
  vunpckhpd: "66.0f.15 w0/1 full8",
  vaddss: "f3.0f.58 w0 b4",
  vmulss: "f3.0f.59 w0 b4",
  vsubss: "f3.0f.5c w0 b4",
  vminss: "f3.0f.5d w0 b4",
  vdivss: "f3.0f.5e w0 b4",
  vmaxss: "f3.0f.5f w0 b4",
  vsqrtss: "f3.0f.51 w0 b4",
  vaddsd: "f2.0f.58 w0/1 b8",
  vmulsd: "f2.0f.59 w0/1 b8",
  vsubsd: "f2.0f.5c w0/1 b8",
  vdivsd: "f2.0f.5e w0/1 b8",
  vsqrtsd: "f2.0f.51 w0/1 b8",
  vcvtss2sd: "f3.0f.5a w0 b4",
  vcvtsd2ss: "f2.0f.5a w0/1 b8",
  vfmadd132ps: "66.0f38.98 w0 full4",
  vfmadd213ps: "66.0f38.a8 w0 full4",
  vfmadd231ps: "66.0f38.b8 w0 full4",
  vfmsub132ps: "66.0f38.9a w0 full4",
  vfmsub213ps: "66.0f38.aa w0 full4",
  vfmsub231ps: "66.0f38.ba w0 full4",
  vfnmadd132ps: "66.0f38.9c w0 full4",
  vfnmadd213ps: "66.0f38.ac w0 full4",
  vfnmadd231ps: "66.0f38.bc w0 full4",
  vfnmsub213ps: "66.0f38.ae w0 full4",
  vfnmsub231ps: "66.0f38.be w0 full4",
  vfmadd132pd: "66.0f38.98 w1 full8",
  vfmadd213pd: "66.0f38.a8 w1 full8",
  vfmadd231pd: "66.0f38.b8 w1 full8",
  vfnmadd213pd: "66.0f38.ac w1 full8",
  vfnmadd231pd: "66.0f38.bc w1 full8",
  vfmadd132ss: "66.0f38.99 w0 b4",
  vfmadd213ss: "66.0f38.a9 w0 b4",
  vfmadd231ss: "66.0f38.b9 w0 b4",
  vfnmadd213ss: "66.0f38.ad w0 b4",
  vfnmadd231ss: "66.0f38.bd w0 b4",
  vfmadd231sd: "66.0f38.b9 w1 b8",
  vpaddb: "66.0f.fc w0 full",
  vpaddw: "66.0f.fd w0 full",
  vpaddd: "66.0f.fe w0 full4",
  vpaddq: "66.0f.d4 w0/1 full8",
  vpaddsw: "66.0f.ed w0 full",
  vpminuw: "66.0f38.3a w0 full",
  vpsubb: "66.0f.f8 w0 full",
  vpsubw: "66.0f.f9 w0 full",
  vpsubd: "66.0f.fa w0 full4",
  vpsubq: "66.0f.fb w0/1 full8",
  vpmullw: "66.0f.d5 w0 full",
  vpmulhw: "66.0f.e5 w0 full",
  vpmulhuw: "66.0f.e4 w0 full",
  vpmulhrsw: "66.0f38.0b w0 full",
  vpmulld: "66.0f38.40 w0 full4",
  vpmuludq: "66.0f.f4 w0/1 full8",
  vpmuldq: "66.0f38.28 w0/1 full8",
  vpmaddwd: "66.0f.f5 w0 full",
  vpmaddubsw: "66.0f38.04 w0 full",
  vpdpbusd: "66.0f38.50 w0 full4 evex",
  vpdpbusds: "66.0f38.51 w0 full4 evex",
  vpdpwssd: "66.0f38.52 w0 full4 evex",
  vpdpwssds: "66.0f38.53 w0 full4 evex",
  vdpbf16ps: "f3.0f38.52 w0 full4 evex",
  vcvtne2ps2bf16: "f2.0f38.72 w0 full4 evex",
  vpavgb: "66.0f.e0 w0 full",
  vpavgw: "66.0f.e3 w0 full",
  vpsadbw: "66.0f.f6 w0 full fixed",
  vpminub: "66.0f.da w0 full",
  vpminsb: "66.0f38.38 w0 full",
  vpminsw: "66.0f.ea w0 full",
  vpminsd: "66.0f38.39 w0 full4",
  vpminud: "66.0f38.3b w0 full4",
  vpmaxub: "66.0f.de w0 full",
  vpmaxsb: "66.0f38.3c w0 full",
  vpmaxsw: "66.0f.ee w0 full",
  vpmaxsd: "66.0f38.3d w0 full4",
  vpmaxud: "66.0f38.3f w0 full4",
  vpacksswb: "66.0f.63 w0 full",
  vpackssdw: "66.0f.6b w0 full4",
  vpackuswb: "66.0f.67 w0 full",
  vpackusdw: "66.0f38.2b w0 full4",
  vpunpcklbw: "66.0f.60 w0 full",
  vpunpcklwd: "66.0f.61 w0 full",
  vpunpckldq: "66.0f.62 w0 full4",
  vpunpcklqdq: "66.0f.6c w0/1 full8",
  vpunpckhbw: "66.0f.68 w0 full",
  vpunpckhwd: "66.0f.69 w0 full",
  vpunpckhdq: "66.0f.6a w0 full4",
  vpunpckhqdq: "66.0f.6d w0/1 full8",
  vpand: "66.0f.db w0 full vex",
  vpandn: "66.0f.df w0 full vex",
  vpor: "66.0f.eb w0 full vex",
  vpxor: "66.0f.ef w0 full vex",
  vpandd: "66.0f.db w0 full4 evex",
  vpandnd: "66.0f.df w0 full4 evex",
  vpord: "66.0f.eb w0 full4 evex",
  vpxord: "66.0f.ef w0 full4 evex",
  vpandq: "66.0f.db w1 full8 evex",
  vpandnq: "66.0f.df w1 full8 evex",
  vporq: "66.0f.eb w1 full8 evex",
  vpxorq: "66.0f.ef w1 full8 evex",
  vpshufb: "66.0f38.00 w0 full",
  vpsignb: "66.0f38.08 w0 full vex",
  vpsignw: "66.0f38.09 w0 full vex",
  vpsignd: "66.0f38.0a w0 full vex",
  vphaddw: "66.0f38.01 w0 full vex",
  vphaddd: "66.0f38.02 w0 full vex",
  vhaddps: "f2.0f.7c w0 full vex",
  vpcmpeqb: "66.0f.74 w0 full vex",
  vpcmpeqw: "66.0f.75 w0 full vex",
  vpcmpeqd: "66.0f.76 w0 full vex",
  vpcmpgtb: "66.0f.64 w0 full vex",
  vpcmpgtw: "66.0f.65 w0 full vex",
  vpcmpgtd: "66.0f.66 w0 full vex",
  vpsllvd: "66.0f38.47 w0 full4",
  vpsllvq: "66.0f38.47 w1 full8",
  vpsrlvd: "66.0f38.45 w0 full4",
  vpsrlvq: "66.0f38.45 w1 full8",
  vpsravd: "66.0f38.46 w0 full4",
  vpsllvw: "66.0f38.12 w1 full evex",
  vpsrlvw: "66.0f38.10 w1 full evex",
  vpsravw: "66.0f38.11 w1 full evex",
  vpsrlw: "66.0f.d1 w0 b16",
  vpsrld: "66.0f.d2 w0 b16",
  vpsrlq: "66.0f.d3 w0/1 b16",
  vpsraw: "66.0f.e1 w0 b16",
  vpsrad: "66.0f.e2 w0 b16",
  vpsllw: "66.0f.f1 w0 b16",
  vpslld: "66.0f.f2 w0 b16",
  vpsllq: "66.0f.f3 w0/1 b16",
  vpermb: "66.0f38.8d w0 full evex",
  vpermw: "66.0f38.8d w1 full evex",
  vpermd: "66.0f38.36 w0 full4 wide",
  vpermps: "66.0f38.16 w0 full4 wide",
  vpermq: "66.0f38.36 w1 full8 evex wide",
  vpermilps: "66.0f38.0c w0 full4",
  vpermt2b: "66.0f38.7d w0 full evex",
  vpermt2w: "66.0f38.7d w1 full evex",
  vpermt2d: "66.0f38.7e w0 full4 evex",
  vpermt2q: "66.0f38.7e w1 full8 evex",
  vpermt2ps: "66.0f38.7f w0 full4 evex",
  vpermi2b: "66.0f38.75 w0 full evex",
  vpermi2w: "66.0f38.75 w1 full evex",
  vpermi2d: "66.0f38.76 w0 full4 evex",
  vpermi2q: "66.0f38.76 w1 full8 evex",
  vpermi2ps: "66.0f38.77 w0 full4 evex",
  vpmultishiftqb: "66.0f38.83 w1 full8 evex",
  vpblendmb: "66.0f38.66 w0 full evex",
  vpblendmw: "66.0f38.66 w1 full evex",
  vpblendmd: "66.0f38.64 w0 full4 evex",
  vblendmps: "66.0f38.65 w0 full4 evex",
  vscalefps: "66.0f38.2c w0 full4 evex",
  vgf2p8mulb: "66.0f38.cf w0 full",
} as const;

const rvmi = {
  vshufps: "np.0f.c6 w0 full4",
  vshufpd: "66.0f.c6 w0/1 full8",
  vcmpps: "np.0f.c2 w0 full vex",
  vcmpss: "f3.0f.c2 w0 b4 vex",
  vpalignr: "66.0f3a.0f w0 full",
  vpternlogd: "66.0f3a.25 w0 full4 evex",
  vpshrdd: "66.0f3a.73 w0 full4 evex",
  vpternlogq: "66.0f3a.25 w1 full8 evex",
  valignd: "66.0f3a.03 w0 full4 evex",
  valignq: "66.0f3a.03 w1 full8 evex",
  vshufi32x4: "66.0f3a.43 w0 full4 evex wide",
  vshufi64x2: "66.0f3a.43 w1 full8 evex wide",
  vshuff32x4: "66.0f3a.23 w0 full4 evex wide",
  vinserti128: "66.0f3a.38 w0 b16 vex y",
  vinsertf128: "66.0f3a.18 w0 b16 vex y",
  vinserti32x4: "66.0f3a.38 w0 b16 evex wide",
  vinsertf32x4: "66.0f3a.18 w0 b16 evex wide",
  vinserti64x4: "66.0f3a.3a w1 b32 evex z",
  vinsertf64x4: "66.0f3a.1a w1 b32 evex z",
  vinserti32x8: "66.0f3a.3a w0 b32 evex z",
  vinsertps: "66.0f3a.21 w0 b4 fixed",
  vperm2i128: "66.0f3a.46 w0 full vex y",
  vperm2f128: "66.0f3a.06 w0 full vex y",
  vpblendd: "66.0f3a.02 w0 full vex",
  vpblendw: "66.0f3a.0e w0 full vex",
  vblendps: "66.0f3a.0c w0 full vex",
  vroundss: "66.0f3a.0a w0 b4 vex",
  vrndscaless: "66.0f3a.0a w0 b4 evex",
  vgf2p8affineqb: "66.0f3a.ce w1 full8",
} as const;

const rm = {
  vmovups: "np.0f.10 w0 full",
  vmovaps: "np.0f.28 w0 full",
  vmovupd: "66.0f.10 w0/1 full",
  vmovdqu: "f3.0f.6f w0 full vex",
  vmovdqa: "66.0f.6f w0 full vex",
  vmovdqu8: "f2.0f.6f w0 full evex",
  vmovdqu16: "f2.0f.6f w1 full evex",
  vmovdqu32: "f3.0f.6f w0 full evex",
  vmovdqu64: "f3.0f.6f w1 full evex",
  vmovdqa32: "66.0f.6f w0 full evex",
  vmovdqa64: "66.0f.6f w1 full evex",
  vmovq: "f3.0f.7e w0/1 b8 fixed",
  vmovshdup: "f3.0f.16 w0 full",
  vmovsldup: "f3.0f.12 w0 full",
  vbroadcastss: "66.0f38.18 w0 b4",
  vbroadcastsd: "66.0f38.19 w0/1 b8 wide",
  vpbroadcastb: "66.0f38.78 w0 b1",
  vpbroadcastw: "66.0f38.79 w0 b2",
  vpbroadcastd: "66.0f38.58 w0 b4",
  vpbroadcastq: "66.0f38.59 w0/1 b8",
  vpabsb: "66.0f38.1c w0 full",
  vpabsw: "66.0f38.1d w0 full",
  vpabsd: "66.0f38.1e w0 full4",
  vpmovsxbw: "66.0f38.20 w0 half",
  vpmovsxbd: "66.0f38.21 w0 quarter",
  vpmovsxbq: "66.0f38.22 w0 eighth",
  vpmovsxwd: "66.0f38.23 w0 half",
  vpmovsxwq: "66.0f38.24 w0 quarter",
  vpmovsxdq: "66.0f38.25 w0 half",
  vpmovzxbw: "66.0f38.30 w0 half",
  vpmovzxbd: "66.0f38.31 w0 quarter",
  vpmovzxbq: "66.0f38.32 w0 eighth",
  vpmovzxwd: "66.0f38.33 w0 half",
  vpmovzxwq: "66.0f38.34 w0 quarter",
  vpmovzxdq: "66.0f38.35 w0 half",
  vcvtdq2ps: "np.0f.5b w0 full4",
  vcvtudq2ps: "f2.0f.7a w0 full4 evex",
  vcvtps2dq: "66.0f.5b w0 full4",
  vcvttps2dq: "f3.0f.5b w0 full4",
  vcvtph2ps: "66.0f38.13 w0 half",
  vcvtps2pd: "np.0f.5a w0 half4",
  vcvtdq2pd: "f3.0f.e6 w0 half4",
  vsqrtps: "np.0f.51 w0 full4",
  vsqrtpd: "66.0f.51 w0/1 full8",
  vrcpps: "np.0f.53 w0 full vex",
  vrsqrtps: "np.0f.52 w0 full vex",
  vrcp14ps: "66.0f38.4c w0 full4 evex",
  vrsqrt14ps: "66.0f38.4e w0 full4 evex",
  vgetexpps: "66.0f38.42 w0 full4 evex",
  vpopcntb: "66.0f38.54 w0 full evex",
  vpopcntd: "66.0f38.55 w0 full4 evex",
  vptest: "66.0f38.17 w0 full vex",
  vtestps: "66.0f38.0e w0 full vex",
  vucomiss: "np.0f.2e w0 b4 fixed",
  vcomiss: "np.0f.2f w0 b4 fixed",
  vucomisd: "66.0f.2e w0/1 b8 fixed",
} as const;

/** From memory alone. */
const load = {
  vmovss: "f3.0f.10 w0 b4",
  vmovsd: "f2.0f.10 w0/1 b8",
  vbroadcasti128: "66.0f38.5a w0 b16 vex y",
  vbroadcastf128: "66.0f38.1a w0 b16 vex y",
  vbroadcasti32x4: "66.0f38.5a w0 b16 evex wide",
  vbroadcastf32x4: "66.0f38.1a w0 b16 evex wide",
  vbroadcasti64x4: "66.0f38.5b w1 b32 evex z",
  vbroadcasti32x2: "66.0f38.59 w0 b8 evex",
  vmovntdqa: "66.0f38.2a w0 full fixed",
} as const;

/** Destinations narrower than the source, which then is a register. */
const narrowing = {
  vcvtpd2ps: "66.0f.5a w0/1 dhalf",
  vcvtneps2bf16: "f3.0f38.72 w0 dhalf evex",
} as const;

const rmi = {
  vpshufd: "66.0f.70 w0 full4",
  vpshufhw: "f3.0f.70 w0 full",
  vpshuflw: "f2.0f.70 w0 full",
  vpermilps: "66.0f3a.04 w0 full4",
  vpermq: "66.0f3a.00 w1 full8 wide",
  vpermpd: "66.0f3a.01 w1 full8 wide",
  vroundps: "66.0f3a.08 w0 full vex",
  vroundpd: "66.0f3a.09 w0 full vex",
  vrndscaleps: "66.0f3a.08 w0 full4 evex",
  vrndscalepd: "66.0f3a.09 w1 full8 evex",
  vgetmantps: "66.0f3a.26 w0 full4 evex",
  vreduceps: "66.0f3a.56 w0 full4 evex",
} as const;

/** Shifts by a constant, whose destination is in `vvvv`. */
const shifts = {
  vpsrlw: "66.0f.71 w0 full /2",
  vpsraw: "66.0f.71 w0 full /4",
  vpsllw: "66.0f.71 w0 full /6",
  vpsrld: "66.0f.72 w0 full4 /2",
  vpsrad: "66.0f.72 w0 full4 /4",
  vpslld: "66.0f.72 w0 full4 /6",
  vpsrlq: "66.0f.73 w0/1 full8 /2",
  vpsllq: "66.0f.73 w0/1 full8 /6",
  vpsrldq: "66.0f.73 w0 full /3 fixed",
  vpslldq: "66.0f.73 w0 full /7 fixed",
  vprord: "66.0f.72 w0 full4 /0 evex",
  vprold: "66.0f.72 w0 full4 /1 evex",
} as const;

const store = {
  vmovups: "np.0f.11 w0 full",
  vmovaps: "np.0f.29 w0 full",
  vmovupd: "66.0f.11 w0/1 full",
  vmovdqu: "f3.0f.7f w0 full vex",
  vmovdqa: "66.0f.7f w0 full vex",
  vmovdqu8: "f2.0f.7f w0 full evex",
  vmovdqu16: "f2.0f.7f w1 full evex",
  vmovdqu32: "f3.0f.7f w0 full evex",
  vmovdqu64: "f3.0f.7f w1 full evex",
  vmovntps: "np.0f.2b w0 full fixed",
  vmovntdq: "66.0f.e7 w0 full fixed",
  vmovss: "f3.0f.11 w0 b4",
  vmovsd: "f2.0f.11 w0/1 b8",
  vmovq: "66.0f.d6 w0/1 b8 fixed",
} as const;

/** Into a narrower register or memory. */
const narrowStore = {
  vpmovwb: "f3.0f38.30 w0 half evex",
  vpmovdb: "f3.0f38.31 w0 quarter evex",
  vpmovdw: "f3.0f38.33 w0 half evex",
  vpmovqd: "f3.0f38.35 w0 half evex",
  vpmovswb: "f3.0f38.20 w0 half evex",
  vpmovsdb: "f3.0f38.21 w0 quarter evex",
  vpmovsdw: "f3.0f38.23 w0 half evex",
  vpmovuswb: "f3.0f38.10 w0 half evex",
  vpmovusdb: "f3.0f38.11 w0 quarter evex",
  vpmovusdw: "f3.0f38.13 w0 half evex",
} as const;

const extract = {
  vcvtps2ph: "66.0f3a.1d w0 half",
  vextracti128: "66.0f3a.39 w0 b16 vex y",
  vextractf128: "66.0f3a.19 w0 b16 vex y",
  vextracti32x4: "66.0f3a.39 w0 b16 evex wide",
  vextractf32x4: "66.0f3a.19 w0 b16 evex wide",
  vextracti64x4: "66.0f3a.3b w1 b32 evex z",
  vextractf64x4: "66.0f3a.1b w1 b32 evex z",
  vextracti32x8: "66.0f3a.3b w0 b32 evex z",
} as const;

/** AVX2's masks are the sign bits of vectors. */
const blends = {
  vblendvps: "66.0f3a.4a w0 full vex",
  vpblendvb: "66.0f3a.4c w0 full vex",
} as const;
const maskedLoad = {
  vmaskmovps: "66.0f38.2c w0 full vex",
  vpmaskmovd: "66.0f38.8c w0 full vex",
} as const;
const maskedStore = {
  vmaskmovps: "66.0f38.2e w0 full vex",
  vpmaskmovd: "66.0f38.8e w0 full vex",
} as const;
const registers = {
  vmovss: "f3.0f.10 w0 b4",
  vmovsd: "f2.0f.10 w0/1 b8",
  vmovhlps: "np.0f.12 w0 b16 fixed x",
  vmovlhps: "np.0f.16 w0 b16 fixed x",
} as const;

const compare = {
  vcmpps: "np.0f.c2 w0 full4 evex keep",
  vpcmpd: "66.0f3a.1f w0 full4 evex keep",
  vpcmpud: "66.0f3a.1e w0 full4 evex keep",
  vpcmpb: "66.0f3a.3f w0 full evex keep",
  vpcmpub: "66.0f3a.3e w0 full evex keep",
  vpcmpw: "66.0f3a.3f w1 full evex keep",
  vpcmpuw: "66.0f3a.3e w1 full evex keep",
} as const;
const test = {
  vpcmpeqb: "66.0f.74 w0 full evex keep",
  vpcmpeqd: "66.0f.76 w0 full4 evex keep",
  vpcmpgtd: "66.0f.66 w0 full4 evex keep",
  vptestmb: "66.0f38.26 w0 full evex keep",
  vptestmd: "66.0f38.27 w0 full4 evex keep",
  vptestnmd: "f3.0f38.27 w0 full4 evex keep",
} as const;

export const encodings = {
  "t:reg s:rm": { tileloadd: "f2.0f38.4b w0 b0 vex" },
  "s:rm t:reg": { tilestored: "f3.0f38.4b w0 b0 vex" },
  "t:reg t:rm t:vvvv": { tdpbsud: "f3.0f38.5e w0 b0 vex" },
  "t:reg": { tilezero: "f2.0f38.49 w0 b0 vex" },
  "m:rm": { ldtilecfg: "np.0f38.49 w0 b0 vex" },
  "v:reg v:vvvv V:rm": rvm,
  "v:reg v:vvvv V:rm i:imm": rvmi,
  "v:reg v:vvvv V:rm v:is4": blends,
  "v:reg v:vvvv v:rm": registers,
  "v:reg v:vvvv m:rm": maskedLoad,
  "m:rm v:vvvv v:reg": maskedStore,
  "v:reg V:rm": rm,
  "v:reg m:rm": load,
  "v:reg v:rm": narrowing,
  "v:reg V:rm i:imm": rmi,
  "v:vvvv V:rm i:imm": shifts,
  "m:rm v:reg": store,
  "V:rm v:reg": narrowStore,
  "V:rm v:reg i:imm": extract,
  "k:reg v:vvvv V:rm i:imm": compare,
  "k:reg v:vvvv V:rm": test,
  "v:reg R:rm": { vmovd: "66.0f.6e w0 b4 g32 fixed", vmovq: "66.0f.6e w1 b8 g64 fixed" },
  "R:rm v:reg": { vmovd: "66.0f.7e w0 b4 g32 fixed", vmovq: "66.0f.7e w1 b8 g64 fixed" },
  "v:reg r:rm": {
    vpbroadcastb: "66.0f38.7a w0 b1 g32 evex",
    vpbroadcastw: "66.0f38.7b w0 b2 g32 evex",
    vpbroadcastd: "66.0f38.7c w0 b4 g32 evex",
    vpbroadcastq: "66.0f38.7c w1 b8 g64 evex",
  },
  "r:reg v:rm": { vpmovmskb: "66.0f.d7 w0 full vex g32", vmovmskps: "np.0f.50 w0 full vex g32" },
  "r:reg V:rm": {
    vcvtss2si: "f3.0f.2d wg b4 fixed",
    vcvttss2si: "f3.0f.2c wg b4 fixed",
    vcvttsd2si: "f2.0f.2c wg b8 fixed",
  },
  "v:reg v:vvvv R:rm": {
    vcvtsi2ss: "f3.0f.2a wg bg fixed",
    vcvtsi2sd: "f2.0f.2a wg bg fixed",
    vcvtusi2ss: "f3.0f.7b wg bg evex fixed",
  },
  "v:reg v:vvvv R:rm i:imm": {
    vpinsrb: "66.0f3a.20 w0 b1 g32 fixed",
    vpinsrw: "66.0f.c4 w0 b2 g32 fixed",
    vpinsrd: "66.0f3a.22 w0 b4 g32 fixed",
    vpinsrq: "66.0f3a.22 w1 b8 g64 fixed",
  },
  "R:rm v:reg i:imm": {
    vpextrb: "66.0f3a.14 w0 b1 g32 fixed",
    vpextrw: "66.0f3a.15 w0 b2 g32 fixed",
    vpextrd: "66.0f3a.16 w0 b4 g32 fixed",
    vpextrq: "66.0f3a.16 w1 b8 g64 fixed",
    vextractps: "66.0f3a.17 w0 b4 g32 fixed",
  },
  "v:reg k:rm": {
    vpmovm2b: "f3.0f38.28 w0 full evex fixed",
    vpmovm2w: "f3.0f38.28 w1 full evex fixed",
    vpmovm2d: "f3.0f38.38 w0 full evex fixed",
  },
  "k:reg v:rm": {
    vpmovb2m: "f3.0f38.29 w0 full evex fixed",
    vpmovd2m: "f3.0f38.39 w0 full evex fixed",
  },
  "k:reg K:rm": {
    kmovb: "66.0f.90 w0 b1 lz vex",
    kmovw: "np.0f.90 w0 b2 lz vex",
    kmovd: "66.0f.90 w1 b4 lz vex",
    kmovq: "np.0f.90 w1 b8 lz vex",
  },
  "m:rm k:reg": {
    kmovb: "66.0f.91 w0 b1 lz vex",
    kmovw: "np.0f.91 w0 b2 lz vex",
    kmovd: "66.0f.91 w1 b4 lz vex",
    kmovq: "np.0f.91 w1 b8 lz vex",
  },
  "k:reg r:rm": {
    kmovb: "66.0f.92 w0 b1 lz g32 vex",
    kmovw: "np.0f.92 w0 b2 lz g32 vex",
    kmovd: "f2.0f.92 w0 b4 lz g32 vex",
    kmovq: "f2.0f.92 w1 b8 lz g64 vex",
  },
  "r:reg k:rm": {
    kmovb: "66.0f.93 w0 b1 lz g32 vex",
    kmovw: "np.0f.93 w0 b2 lz g32 vex",
    kmovd: "f2.0f.93 w0 b4 lz g32 vex",
    kmovq: "f2.0f.93 w1 b8 lz g64 vex",
  },
  "k:reg k:rm": {
    knotw: "np.0f.44 w0 b2 lz vex",
    knotq: "np.0f.44 w1 b8 lz vex",
    kortestw: "np.0f.98 w0 b2 lz vex",
    kortestq: "np.0f.98 w1 b8 lz vex",
    ktestw: "np.0f.99 w0 b2 lz vex",
  },
  "k:reg k:vvvv k:rm": {
    kandw: "np.0f.41 w0 b2 l1 vex",
    kandnw: "np.0f.42 w0 b2 l1 vex",
    korw: "np.0f.45 w0 b2 l1 vex",
    kxnorw: "np.0f.46 w0 b2 l1 vex",
    kxorw: "np.0f.47 w0 b2 l1 vex",
    kandq: "np.0f.41 w1 b8 l1 vex",
    korq: "np.0f.45 w1 b8 l1 vex",
    kxnorq: "np.0f.46 w1 b8 l1 vex",
    kxorq: "np.0f.47 w1 b8 l1 vex",
    kunpckwd: "np.0f.4b w0 b2 l1 vex",
    kunpckdq: "np.0f.4b w1 b8 l1 vex",
  },
  "k:reg k:rm i:imm": {
    kshiftrw: "66.0f3a.30 w1 b2 lz vex",
    kshiftlw: "66.0f3a.32 w1 b2 lz vex",
    kshiftrq: "66.0f3a.31 w1 b8 lz vex",
    kshiftlq: "66.0f3a.33 w1 b8 lz vex",
  },
  "r:reg r:vvvv R:rm": {
    andn: "np.0f38.f2 wg bg lz vex",
    pext: "f3.0f38.f5 wg bg lz vex",
    pdep: "f2.0f38.f5 wg bg lz vex",
  },
  "r:reg R:rm r:vvvv": {
    bextr: "np.0f38.f7 wg bg lz vex",
    bzhi: "np.0f38.f5 wg bg lz vex",
    shlx: "66.0f38.f7 wg bg lz vex",
    sarx: "f3.0f38.f7 wg bg lz vex",
    shrx: "f2.0f38.f7 wg bg lz vex",
  },
} as const satisfies Readonly<Record<string, Readonly<Record<string, string>>>>;

export type Kind = "v" | "V" | "m" | "s" | "r" | "R" | "k" | "K" | "t" | "i";
export type Field = "reg" | "vvvv" | "rm" | "is4" | "imm";

/** What a memory operand is, or how wide the register in its place. */
export interface Extent {
  /** Of a vector: 1 the whole, 2 the half …; 0: `bytes`, whatever the vector. */
  readonly part: 0 | 1 | 2 | 4 | 8;
  readonly bytes: number;
  /** Bytes of an element that AVX-512 can repeat; 0: it cannot. */
  readonly element: 0 | 4 | 8;
  /** The `rm` operand is the wide one, and `reg` half of it. */
  readonly narrows: boolean;
  /** As many bytes as the general register has. */
  readonly byRegister: boolean;
}

/** A row, read. */
export interface Form {
  readonly name: string;
  readonly operands: readonly { readonly kind: Kind; readonly field: Field }[];
  /** Which operand goes to a field; −1: none. */
  readonly fieldAt: Readonly<Record<Field, number>>;
  readonly prefix: number;
  readonly map: number;
  readonly opcode: number;
  readonly vexW: number;
  readonly evexW: number;
  /** W is that of the general register. */
  readonly byRegister: boolean;
  readonly vex: boolean;
  readonly evex: boolean;
  readonly extension: number;
  readonly extent: Extent;
  readonly widths: readonly (128 | 256 | 512)[];
  /** The length bit where no vector tells it. */
  readonly length: 0 | 1 | undefined;
  readonly gprBits: 0 | 32 | 64;
  readonly masking: "zero" | "keep" | "none";
}

const parts = { full: 1, half: 2, quarter: 4, eighth: 8, dhalf: 1 } as const;

function extentOf(word: string): Extent {
  const [, name, digits] = /^([a-z]+)(\d*)$/.exec(word)!;
  if (name === "b") {
    return { part: 0, bytes: Number(digits), element: 0, narrows: false, byRegister: false };
  }
  if (name === "bg") return { part: 0, bytes: 0, element: 0, narrows: false, byRegister: true };
  return {
    part: parts[name as keyof typeof parts],
    bytes: 0,
    element: Number(digits) as 0 | 4 | 8,
    narrows: name === "dhalf",
    byRegister: false,
  };
}

function read(pattern: string, name: string, row: string): Form {
  const [code, w, extentWord, ...flags] = row.split(" ") as [string, string, string, ...string[]];
  const [prefix, map, opcode] = code.split(".") as [string, string, string];
  const has = (flag: string) => flags.includes(flag);
  const number = (start: string) => Number(flags.find((flag) => flag.startsWith(start))?.slice(start.length) ?? 0);
  const [vexW, evexW = vexW] = w.slice(1).split("/") as [string, string?];
  const evex = !has("vex");
  const extent = extentOf(extentWord);
  const scalar = extent.part === 0 && extent.bytes <= 8 && !name.includes("broadcast");
  const widths = [128, 256, 512].filter((bits) => {
    if (bits === 512 && !evex) return false;
    if (has("x")) return bits === 128;
    if (has("y")) return bits === 256;
    if (has("z")) return bits === 512;
    if (has("wide")) return bits > 128;
    return bits === 128 || !(scalar || extent.byRegister);
  });
  const operands = pattern.split(" ").map((operand) => {
    const [kind, field] = operand.split(":") as [Kind, Field];
    return { kind, field };
  });
  const at = (field: Field) => operands.findIndex((operand) => operand.field === field);
  return {
    name,
    operands,
    fieldAt: { reg: at("reg"), vvvv: at("vvvv"), rm: at("rm"), is4: at("is4"), imm: at("imm") },
    prefix: ["np", "66", "f3", "f2"].indexOf(prefix),
    map: ["", "0f", "0f38", "0f3a"].indexOf(map),
    opcode: Number.parseInt(opcode, 16),
    vexW: Number(vexW) || 0,
    evexW: Number(evexW) || 0,
    byRegister: w === "wg",
    vex: !has("evex"),
    evex,
    extension: number("/"),
    extent,
    widths: widths as (128 | 256 | 512)[],
    length: has("lz") ? 0 : has("l1") ? 1 : undefined,
    gprBits: number("g") as 0 | 32 | 64,
    masking: has("fixed") || !evex ? "none" : has("keep") ? "keep" : "zero",
  };
}

/** Rows by the name of their instruction, with their patterns. */
const rowsOf = new Map<string, [pattern: string, row: string][]>();
for (const [pattern, rows] of Object.entries(encodings)) {
  for (const [name, row] of Object.entries(rows)) {
    const others = rowsOf.get(name);
    if (others) others.push([pattern, row]);
    else rowsOf.set(name, [[pattern, row]]);
  }
}

export const vectorInstructions: readonly string[] = [...rowsOf.keys()];

const known = new Map<string, readonly Form[]>();
/** The forms of an instruction, told apart by their operands. A process uses few: rows are read when they are needed. */
export function formsOf(name: string): readonly Form[] {
  let found = known.get(name);
  if (found === undefined) {
    found = rowsOf.get(name)!.map(([pattern, row]) => read(pattern, name, row));
    known.set(name, found);
  }
  return found;
}
