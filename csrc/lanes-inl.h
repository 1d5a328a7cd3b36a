// Vectors that are not full, lanes that change places, and rows of a few floats gathered into one vector.

#if defined(__AVX2__) && !defined(__AVX512F__)
// All ones in the first `count` lanes of part p; count is 0 .. 16.
GOSSAMER_INLINE __m256i first_lanes(int64_t count, int p) {
  static const int32_t ones_then_zeros[2 * kLanes] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ones_then_zeros + kLanes - count + p * kPartLanes));
}
#endif

// The first `count` of sixteen elements, at least 0; the others are `rest` on load and untouched on store.
GOSSAMER_INLINE f32x16 load_part(const float* from, int64_t count, float rest = 0.0f) {
  if (count >= kLanes) return load<f32x16>(from);
#if defined(__AVX512F__)
  return {bits_of<f32x16::Part>(_mm512_mask_loadu_ps(_mm512_set1_ps(rest), __mmask16((1u << count) - 1), from))};
#elif defined(__AVX2__)
  f32x16 v;
  GOSSAMER_EACH_PART {
    const __m256i is_there = first_lanes(count, p);
    const __m256 part = _mm256_maskload_ps(from + p * kPartLanes, is_there);
    v.part[p] = bits_of<f32x16::Part>(_mm256_blendv_ps(_mm256_set1_ps(rest), part, _mm256_castsi256_ps(is_there)));
  }
  return v;
#else
  float part[kLanes];
  for (int k = 0; k < kLanes; ++k) part[k] = k < count ? from[k] : rest;
  return load<f32x16>(part);
#endif
}
GOSSAMER_INLINE void put_part(float* to, f32x16 v, int64_t count, bool streaming) {
  if (count >= kLanes) return put(to, v, streaming);
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, __mmask16((1u << count) - 1), bits_of<__m512>(v.part[0]));
#elif defined(__AVX2__)
  GOSSAMER_EACH_PART _mm256_maskstore_ps(to + p * kPartLanes, first_lanes(count, p), bits_of<__m256>(v.part[p]));
#else
  float part[kLanes];
  store(part, v);
  for (int k = 0; k < count; ++k) to[k] = part[k];
#endif
}
// f(c, elements from there on) for every sixteenth column c; most calls know that a vector is full, and ask no more.
template <typename F>
GOSSAMER_INLINE void for_vectors(int64_t cols, const F& f) {
  int64_t c = 0;
  for (; c + kLanes <= cols; c += kLanes) f(c, int64_t(kLanes));
  if (c < cols) f(c, cols - c);
}
// sum_lanes of N vectors.
template <int N>
GOSSAMER_INLINE void sum_lanes_each(const f32x16* v, float* out) {
#if defined(__AVX512F__)
  if constexpr (N == 4) {
    __m128 four[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const __m512 all = bits_of<__m512>(v[k].part[0]);
      const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
      four[k] = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    }
    const __m128 low = _mm_add_ps(_mm_unpacklo_ps(four[0], four[1]), _mm_unpackhi_ps(four[0], four[1]));
    const __m128 high = _mm_add_ps(_mm_unpacklo_ps(four[2], four[3]), _mm_unpackhi_ps(four[2], four[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(low, high), _mm_movehl_ps(high, low)));
    return;
  }
#endif
  for (int k = 0; k < N; ++k) out[k] = sum_lanes(v[k]);
}
// out[h] = sum_lanes(f(h)) for h below n.
template <typename F>
GOSSAMER_INLINE void sum_lanes_of(int64_t n, float* out, const F& f) {
  int64_t h = 0;
  for (; h + 4 <= n; h += 4) {
    const f32x16 four[4] = {f(h), f(h + 1), f(h + 2), f(h + 3)};
    sum_lanes_each<4>(four, out + h);
  }
  for (; h < n; ++h) out[h] = sum_lanes(f(h));
}

// v in the first `count` lanes, `rest` in the others.
GOSSAMER_INLINE f32x16 keep_part(f32x16 v, int64_t count, float rest) {
  return select(bits_of<i32x16>(lane_numbers()) < splat(int32_t(count)), v, splat(rest));
}

// Lane l of the result is lane l ^ S.
template <int S>
GOSSAMER_INLINE f32x16 swap_lanes(f32x16 v) {
#if defined(__AVX512F__)
  const __m512 all = bits_of<__m512>(v.part[0]);
  const __m512 swapped = S == 8   ? _mm512_shuffle_f32x4(all, all, 0x4e)
                         : S == 4 ? _mm512_shuffle_f32x4(all, all, 0xb1)
                                  : _mm512_permute_ps(all, S == 2 ? 0x4e : 0xb1);
  return {bits_of<f32x16::Part>(swapped)};
#elif defined(__AVX2__)
  if (S == 8) return {{v.part[kParts - 1], v.part[0]}};
  GOSSAMER_EACH_PART {
    const __m256 eight = bits_of<__m256>(v.part[p]);
    v.part[p] = bits_of<f32x16::Part>(S == 4 ? _mm256_permute2f128_ps(eight, eight, 1)
                                             : _mm256_permute_ps(eight, S == 2 ? 0x4e : 0xb1));
  }
  return v;
#else
  float from[kLanes], to[kLanes];
  store(from, v);
  for (int k = 0; k < kLanes; ++k) to[k] = from[k ^ S];
  return load<f32x16>(to);
#endif
}

// Lanes l, l + H, l + 2 H .. joined by f, in every one of them: lane l with l + 8, then with l + 4, and so on.
template <int H, typename F>
GOSSAMER_INLINE f32x16 fold_lanes(f32x16 v, const F& f) {
  if (H <= 8) v = f(v, swap_lanes<8>(v));
  if (H <= 4) v = f(v, swap_lanes<4>(v));
  if (H <= 2) v = f(v, swap_lanes<2>(v));
  if (H <= 1) v = f(v, swap_lanes<1>(v));
  return v;
}
template <int H>
GOSSAMER_INLINE f32x16 sum_by_head(f32x16 v) {
  return fold_lanes<H>(v, [](f32x16 a, f32x16 b) { return a + b; });
}

// a0 b0 a1 b1 .., as two vectors.
GOSSAMER_INLINE void interleave(f32x16 a, f32x16 b, f32x16* out) {
#if defined(__AVX512F__)
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  const __m512 x = bits_of<__m512>(a.part[0]), y = bits_of<__m512>(b.part[0]);
  out[0] = {bits_of<f32x16::Part>(_mm512_permutex2var_ps(x, low, y))};
  out[1] = {bits_of<f32x16::Part>(_mm512_permutex2var_ps(x, high, y))};
#elif defined(__AVX2__)
  GOSSAMER_EACH_PART {
    const __m256 x = bits_of<__m256>(a.part[p]), y = bits_of<__m256>(b.part[p]);
    const __m256 low = _mm256_unpacklo_ps(x, y), high = _mm256_unpackhi_ps(x, y);
    out[p].part[0] = bits_of<f32x16::Part>(_mm256_permute2f128_ps(low, high, 0x20));
    out[p].part[kParts - 1] = bits_of<f32x16::Part>(_mm256_permute2f128_ps(low, high, 0x31));
  }
#else
  float x[kLanes], y[kLanes], both[2 * kLanes];
  store(x, a);
  store(y, b);
  for (int k = 0; k < kLanes; ++k) both[2 * k] = x[k], both[2 * k + 1] = y[k];
  out[0] = load<f32x16>(both);
  out[1] = load<f32x16>(both + kLanes);
#endif
}

// Four lanes of rows of H floats: lanes 4 q .. 4 q + 3 of gather_heads.
typedef float f32x4 __attribute__((vector_size(16)));
template <int H, typename F>
GOSSAMER_INLINE f32x4 gather_four(const float* x, const F& row, int q) {
  f32x4 four;
  if (H == 1) {
    four = f32x4{x[row(4 * q)], x[row(4 * q + 1)], x[row(4 * q + 2)], x[row(4 * q + 3)]};
  } else if (H == 2) {
    typedef int64_t i64x2 __attribute__((vector_size(16)));
    int64_t low, high;
    std::memcpy(&low, x + row(2 * q) * 2, sizeof low);
    std::memcpy(&high, x + row(2 * q + 1) * 2, sizeof high);
    four = bits_of<f32x4>(i64x2{low, high});
  } else {
    std::memcpy(&four, x + row(4 * q / H) * H + 4 * q % H, sizeof four);
  }
  return four;
}
// Rows row(0) .. row(16 / H - 1) of x [.., H], one after the other. They are put together in registers: a vector that
// is loaded from just stored pieces waits for all of them to reach the cache.
template <int H, typename F>
GOSSAMER_INLINE f32x16 gather_heads(const float* x, const F& row) {
  const f32x4 a = gather_four<H>(x, row, 0), b = gather_four<H>(x, row, 1), c = gather_four<H>(x, row, 2),
              d = gather_four<H>(x, row, 3);
#if defined(__AVX2__)
  const __m256 low = _mm256_set_m128(bits_of<__m128>(b), bits_of<__m128>(a));
  const __m256 high = _mm256_set_m128(bits_of<__m128>(d), bits_of<__m128>(c));
#if defined(__AVX512F__)
  return {bits_of<f32x16::Part>(_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1))};
#else
  return {{bits_of<f32x16::Part>(low), bits_of<f32x16::Part>(high)}};
#endif
#else
  return {{a, b, c, d}};
#endif
}

// f with the number of heads as a compile-time constant where sixteen lanes hold whole rows of them, else with 0.
template <int H>
struct HeadsTag {
  static constexpr int value = H;
};
template <typename F>
GOSSAMER_INLINE void by_heads(int64_t heads, const F& f) {
  switch (heads) {
    case 1:
      return f(HeadsTag<1>());
    case 2:
      return f(HeadsTag<2>());
    case 4:
      return f(HeadsTag<4>());
    case 8:
      return f(HeadsTag<8>());
    case 16:
      return f(HeadsTag<16>());
    default:
      return f(HeadsTag<0>());
  }
}

// f with a number of vectors, 1 .. Most, as a compile-time constant.
template <int N>
struct VectorsTag {
  static constexpr int value = N;
};
template <int Most, typename F>
GOSSAMER_INLINE void by_vectors(int64_t vectors, const F& f) {
  if constexpr (Most > 1) {
    if (vectors < Most) return by_vectors<Most - 1>(vectors, f);
  }
  f(VectorsTag<Most>());
}
