// Sixteen small integers, widened on load and narrowed on store; values fit. gcc's own code for these is 4x slower.
#if defined(__AVX512F__)
GOSSAMER_INLINE __m128i load128(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
GOSSAMER_INLINE __m256i load256(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
GOSSAMER_INLINE i32x16 widen(const int8_t* x) { return {bits_of<i32x16::Part>(_mm512_cvtepi8_epi32(load128(x)))}; }
GOSSAMER_INLINE i32x16 widen(const uint8_t* x) { return {bits_of<i32x16::Part>(_mm512_cvtepu8_epi32(load128(x)))}; }
GOSSAMER_INLINE i32x16 widen(const uint16_t* x) { return {bits_of<i32x16::Part>(_mm512_cvtepu16_epi32(load256(x)))}; }
GOSSAMER_INLINE void narrow(int8_t* to, i32x16 v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(bits_of<__m512i>(v.part[0])));
}
GOSSAMER_INLINE void narrow(uint16_t* to, i32x16 v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(bits_of<__m512i>(v.part[0])));
}
#elif defined(__AVX2__)
GOSSAMER_INLINE __m128i load64(const void* from) { return _mm_loadl_epi64(static_cast<const __m128i*>(from)); }
GOSSAMER_INLINE __m128i load128(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
GOSSAMER_INLINE i32x16 two_parts(__m256i low, __m256i high) {
  return {bits_of<i32x16::Part>(low), bits_of<i32x16::Part>(high)};
}
GOSSAMER_INLINE i32x16 widen(const int8_t* x) {
  return two_parts(_mm256_cvtepi8_epi32(load64(x)), _mm256_cvtepi8_epi32(load64(x + 8)));
}
GOSSAMER_INLINE i32x16 widen(const uint8_t* x) {
  return two_parts(_mm256_cvtepu8_epi32(load64(x)), _mm256_cvtepu8_epi32(load64(x + 8)));
}
GOSSAMER_INLINE i32x16 widen(const uint16_t* x) {
  return two_parts(_mm256_cvtepu16_epi32(load128(x)), _mm256_cvtepu16_epi32(load128(x + 8)));
}
GOSSAMER_INLINE __m256i low_halves(i32x16 v) {  // the low 16 bits of each lane
  const __m256i mask = _mm256_set1_epi32(0xffff);
  const __m256i packed = _mm256_packus_epi32(_mm256_and_si256(bits_of<__m256i>(v.part[0]), mask),
                                             _mm256_and_si256(bits_of<__m256i>(v.part[kParts - 1]), mask));
  return _mm256_permute4x64_epi64(packed, 0xd8);
}
GOSSAMER_INLINE void narrow(uint16_t* to, i32x16 v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), low_halves(v));
}
GOSSAMER_INLINE void narrow(int8_t* to, i32x16 v) {
  const __m256i halves = _mm256_and_si256(low_halves(v), _mm256_set1_epi16(0xff));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packus_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
}
#else
template <typename T>
GOSSAMER_INLINE i32x16 widen(const T* x) {
  int32_t wide[kLanes];
  for (int k = 0; k < kLanes; ++k) wide[k] = x[k];
  return load<i32x16>(wide);
}
template <typename T>
GOSSAMER_INLINE void narrow(T* to, i32x16 v) {
  int32_t wide[kLanes];
  store(wide, v);
  for (int k = 0; k < kLanes; ++k) to[k] = T(wide[k]);
}
#endif
// Sixty-four of them; values fit.
GOSSAMER_INLINE void narrow64(int8_t* to, i32x16 a, i32x16 b, i32x16 c, i32x16 d) {
#if defined(__AVX512BW__)
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i low = _mm512_packs_epi32(bits_of<__m512i>(a.part[0]), bits_of<__m512i>(b.part[0]));
  const __m512i high = _mm512_packs_epi32(bits_of<__m512i>(c.part[0]), bits_of<__m512i>(d.part[0]));
  _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, _mm512_packs_epi16(low, high)));
#else
  narrow(to, a);
  narrow(to + kLanes, b);
  narrow(to + 2 * kLanes, c);
  narrow(to + 3 * kLanes, d);
#endif
}
// The same of integers from 0 to 255.
GOSSAMER_INLINE void narrow64_unsigned(uint8_t* to, i32x16 a, i32x16 b, i32x16 c, i32x16 d) {
#if defined(__AVX512BW__)
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i low = _mm512_packs_epi32(bits_of<__m512i>(a.part[0]), bits_of<__m512i>(b.part[0]));
  const __m512i high = _mm512_packs_epi32(bits_of<__m512i>(c.part[0]), bits_of<__m512i>(d.part[0]));
  _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high)));
#elif defined(__AVX2__)
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const auto half = [&](uint8_t* at, i32x16 x, i32x16 y) {
    const __m256i low = _mm256_packs_epi32(bits_of<__m256i>(x.part[0]), bits_of<__m256i>(x.part[kParts - 1]));
    const __m256i high = _mm256_packs_epi32(bits_of<__m256i>(y.part[0]), bits_of<__m256i>(y.part[kParts - 1]));
    const __m256i all = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), all);
  };
  half(to, a, b);
  half(to + 32, c, d);
#else
  narrow(to, a);
  narrow(to + kLanes, b);
  narrow(to + 2 * kLanes, c);
  narrow(to + 3 * kLanes, d);
#endif
}
GOSSAMER_INLINE void narrow_bytes(uint8_t* to, i32x16 v) { narrow(reinterpret_cast<int8_t*>(to), v); }
