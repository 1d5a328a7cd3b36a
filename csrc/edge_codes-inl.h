// Rows of int8 codes along the edges of one node, in integers: a dot product for each edge and head, and sums weighted
// by edge and head. Weights become integers for it, so that an instruction takes several edges at a time.

// The dot product of each head's columns, modulo 2^32; with four to a group, of codes b + 128: sums of 128 a are yet to
// be taken off.
GOSSAMER_INLINE void head_sums(const int8_t* a, const int8_t* b, int64_t heads, int64_t width, int32_t* out) {
  int64_t h = 0;
#if defined(__AVX512BW__)
  constexpr int64_t step = kGroup == 4 ? 64 : 32;
  if (width % step == 0)
    for (; h + 4 <= heads; h += 4) {
      __m512i sums[4];
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const int8_t *left = a + (h + k) * width, *right = b + (h + k) * width;
        sums[k] = _mm512_setzero_si512();
        for (int64_t c = 0; c < width; c += step) {
#if defined(__AVX512VNNI__)
          const __m512i shifted = _mm512_xor_si512(_mm512_loadu_si512(right + c), _mm512_set1_epi8(-128));
          sums[k] = _mm512_dpbusd_epi32(sums[k], shifted, _mm512_loadu_si512(left + c));
#else
          sums[k] = _mm512_add_epi32(sums[k], _mm512_madd_epi16(_mm512_cvtepi8_epi16(load256(left + c)),
                                                                _mm512_cvtepi8_epi16(load256(right + c))));
#endif
        }
      }
      const auto halves = [](__m512i x, __m512i y) {
        return _mm512_add_epi32(_mm512_unpacklo_epi32(x, y), _mm512_unpackhi_epi32(x, y));
      };
      const __m512i low = halves(sums[0], sums[1]), high = halves(sums[2], sums[3]);
      const __m512i each = _mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
      const __m256i two = _mm256_add_epi32(_mm512_castsi512_si256(each), _mm512_extracti64x4_epi64(each, 1));
      const __m128i one = _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + h), one);
    }
#elif defined(__AVX2__)
  if (width % kLanes == 0)
    for (; h + 4 <= heads; h += 4) {
      __m256i sums[4];
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const int8_t *left = a + (h + k) * width, *right = b + (h + k) * width;
        sums[k] = _mm256_setzero_si256();
        for (int64_t c = 0; c < width; c += kLanes)
          sums[k] = _mm256_add_epi32(sums[k], _mm256_madd_epi16(_mm256_cvtepi8_epi16(load128(left + c)),
                                                                _mm256_cvtepi8_epi16(load128(right + c))));
      }
      const __m256i low = _mm256_hadd_epi32(sums[0], sums[1]), high = _mm256_hadd_epi32(sums[2], sums[3]);
      const __m256i each = _mm256_hadd_epi32(low, high);
      const __m128i one = _mm_add_epi32(_mm256_castsi256_si128(each), _mm256_extracti128_si256(each, 1));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + h), one);
    }
#endif
  for (; h < heads; ++h) {
    uint32_t sum = uint32_t(dot(a + h * width, b + h * width, width));
    for (int64_t c = h * width; kGroup == 4 && c < (h + 1) * width; ++c) sum += 128u * uint32_t(a[c]);
    out[h] = int32_t(sum);
  }
}

// Edges of one source at a time: their rows of g stay in L1 from the dot product to the sum.
constexpr int64_t kGatEdges = 32;
constexpr float kWeightMax = 127.0f * 256.0f;  // both halves of q fit eight bits

GOSSAMER_INLINE i32x16 splat_group(const Code* codes) {
  int32_t group;
  std::memcpy(&group, codes, 4);
  return splat(group);
}

// Weights of edges as integers, w = step * q with 16 bits for each q: off by at most 2^-16 of the largest w of a head.
// Sums of q times codes are exact in int32, kGroup edges an instruction; with four, q is 256 high + low.
struct EdgeCodes {
  Code *high, *low;  // [groups][heads][kGroup]
  int32_t* sums;     // of q by head
  float* step;       // by head
  const int8_t** rows;
  const int8_t* zeros;  // a row of them
};
GOSSAMER_INLINE void put_code(Code* high, Code* low, int64_t at, int32_t q) {
  high[at] = Code(kGroup == 4 ? (q + 128) >> 8 : q);
  if (kGroup == 4) low[at] = Code(int8_t(q));
}

// Sixteen codes of two rows, zero from `count` on, as halves of one lane each.
GOSSAMER_INLINE i32x16 pair_codes(const int8_t* a, const int8_t* b, int64_t count) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  if (count >= kLanes) {
    const __m128i x = load128(a), y = load128(b);
    return two_parts(_mm256_cvtepi8_epi16(_mm_unpacklo_epi8(x, y)), _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(x, y)));
  }
#endif
  return (widen_part(a, count) & 0xffff) | (widen_part(b, count) << 16);
}

// row[c] (+)= sum over the edges of w g[c] of one head's columns.
GOSSAMER_INLINE void sum_codes(EdgeCodes w, int64_t heads, int64_t h, int64_t groups, int64_t first, int64_t last,
                               bool starts, float* row) {
  const float step = w.step[h];
  const Code* high = w.high + h * kGroup;
  const auto write = [&](int64_t c, i32x16 sum) {
    const f32x16 here = to_float(sum) * step;
    put_part(row + c, starts ? here : here + load_part(row + c, last - c), last - c, false);
  };
#if defined(__AVX512VNNI__)
  const Code* low = w.low + h * kGroup;
  const i32x16 shift = splat(int32_t(uint32_t(w.sums[h]) * 128u));
  for (int64_t c = first; c < last; c += 64) {
    const __mmask64 there = last - c >= 64 ? ~__mmask64(0) : (__mmask64(1) << (last - c)) - 1;
    i32x16 upper[4], lower[4];
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) upper[q] = lower[q] = splat(0);
    for (int64_t k = 0; k < groups; ++k) {
      __m512i x[4], y[4];
#pragma GCC unroll 4
      for (int e = 0; e < 4; ++e)
        x[e] = _mm512_xor_si512(_mm512_maskz_loadu_epi8(there, w.rows[k * 4 + e] + c), _mm512_set1_epi8(-128));
      y[0] = _mm512_unpacklo_epi8(x[0], x[1]);
      y[1] = _mm512_unpackhi_epi8(x[0], x[1]);
      y[2] = _mm512_unpacklo_epi8(x[2], x[3]);
      y[3] = _mm512_unpackhi_epi8(x[2], x[3]);
      x[0] = _mm512_unpacklo_epi16(y[0], y[2]);
      x[1] = _mm512_unpackhi_epi16(y[0], y[2]);
      x[2] = _mm512_unpacklo_epi16(y[1], y[3]);
      x[3] = _mm512_unpackhi_epi16(y[1], y[3]);
      const i32x16 by_upper = splat_group(high + k * heads * 4), by_lower = splat_group(low + k * heads * 4);
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) {
        const i32x16 group = {bits_of<i32x16::Part>(x[q])};
        upper[q] = dot_group(upper[q], group, by_upper);
        lower[q] = dot_group(lower[q], group, by_lower);
      }
    }
    // Unpacking left columns 16 L + 4 q .. + 3 in quarter L of sum q.
    __m512i t[4], u[4];
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) t[q] = bits_of<__m512i>(((upper[q] << 8) + lower[q] - shift).part[0]);
    u[0] = _mm512_shuffle_i32x4(t[0], t[1], 0x44);
    u[1] = _mm512_shuffle_i32x4(t[0], t[1], 0xee);
    u[2] = _mm512_shuffle_i32x4(t[2], t[3], 0x44);
    u[3] = _mm512_shuffle_i32x4(t[2], t[3], 0xee);
    t[0] = _mm512_shuffle_i32x4(u[0], u[2], 0x88);
    t[1] = _mm512_shuffle_i32x4(u[0], u[2], 0xdd);
    t[2] = _mm512_shuffle_i32x4(u[1], u[3], 0x88);
    t[3] = _mm512_shuffle_i32x4(u[1], u[3], 0xdd);
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q)
      if (c + q * kLanes < last) write(c + q * kLanes, i32x16{bits_of<i32x16::Part>(t[q])});
  }
#else
  for (int64_t c = first; c < last; c += kLanes) {
    i32x16 sum = splat(0);
    for (int64_t k = 0; k < groups; ++k)
      sum = dot_group(sum, pair_codes(w.rows[k * 2] + c, w.rows[k * 2 + 1] + c, last - c),
                      splat_group(high + k * heads * 2));
    write(c, sum);
  }
#endif
}
