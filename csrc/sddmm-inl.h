// One dot product per edge and head: out[e, h] = <a_i, b_j> over the columns of head h, for e = (i, j).

// The product of whole vectors, by lanes.
GOSSAMER_INLINE f32x16 dot_lanes(const float* a, const float* b, int64_t n) {
  f32x16 sum0 = splat(0.0f), sum1 = sum0;
  int64_t c = 0;
  for (; c + 2 * kLanes <= n; c += 2 * kLanes) {
    sum0 += load<f32x16>(a + c) * load<f32x16>(b + c);
    sum1 += load<f32x16>(a + c + kLanes) * load<f32x16>(b + c + kLanes);
  }
  if (c + kLanes <= n) sum0 += load<f32x16>(a + c) * load<f32x16>(b + c);
  return sum0 + sum1;
}
GOSSAMER_INLINE float dot_rest(float total, const float* a, const float* b, int64_t n) {
  for (int64_t c = n / kLanes * kLanes; c < n; ++c) total += a[c] * b[c];
  return total;
}
GOSSAMER_INLINE float dot(const float* a, const float* b, int64_t n) {
  return dot_rest(sum_lanes(dot_lanes(a, b, n)), a, b, n);
}
// One for each head.
GOSSAMER_INLINE void head_dots(const float* a, const float* b, int64_t heads, int64_t width, float* out) {
  sum_lanes_of(heads, out, [&](int64_t h) GOSSAMER_INLINED { return dot_lanes(a + h * width, b + h * width, width); });
  for (int64_t h = 0; h < heads && width % kLanes; ++h) out[h] = dot_rest(out[h], a + h * width, b + h * width, width);
}

static void sddmm(Csr m, const float* a, const float* b, float* out, int64_t cols, int64_t heads, int threads) {
  const int64_t width = cols / heads, nnz = m.rowptr[m.num_dst];
  parallel_rows(m.rowptr, m.num_dst, cols, threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      for (int64_t e = m.rowptr[i]; e < m.rowptr[i + 1]; ++e) {
        if (e + kPrefetchEdges < nnz)
          prefetch_bytes(b + int64_t(m.col[e + kPrefetchEdges]) * cols, cols * int64_t(sizeof(float)));
        const float* bj = b + int64_t(m.col[e]) * cols;
        for (int64_t h = 0; h < heads; ++h) out[e * heads + h] = dot(a + i * cols + h * width, bj + h * width, width);
      }
    }
  });
}

// The same on int8 rows: an exact int32 sum per edge and head, times both rows' scales.
GOSSAMER_INLINE int32_t dot(const int8_t* a, const int8_t* b, int64_t n) {
  int64_t c = 0;
#if defined(__AVX512BW__)
  __m512i sum = _mm512_setzero_si512();
  for (; c + 32 <= n; c += 32)
    sum = _mm512_add_epi32(
        sum, _mm512_madd_epi16(_mm512_cvtepi8_epi16(load256(a + c)), _mm512_cvtepi8_epi16(load256(b + c))));
  int32_t total = _mm512_reduce_add_epi32(sum);
#elif defined(__AVX2__)
  __m256i sum = _mm256_setzero_si256();
  for (; c + 16 <= n; c += 16)
    sum = _mm256_add_epi32(
        sum, _mm256_madd_epi16(_mm256_cvtepi8_epi16(load128(a + c)), _mm256_cvtepi8_epi16(load128(b + c))));
  int32_t lanes[8], total = 0;
  std::memcpy(lanes, &sum, sizeof lanes);
  for (int k = 0; k < 8; ++k) total += lanes[k];
#else
  int32_t total = 0;
#endif
  for (; c < n; ++c) total += int32_t(a[c]) * int32_t(b[c]);
  return total;
}

// ||scale_i codes_i||_2 of each row.
static void sddmm_int8(Csr m, Int8Rows a, Int8Rows b, float* out, int64_t cols, int64_t heads, int threads) {
  const int64_t width = cols / heads, nnz = m.rowptr[m.num_dst];
  parallel_rows(m.rowptr, m.num_dst, cols, threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      for (int64_t e = m.rowptr[i]; e < m.rowptr[i + 1]; ++e) {
        if (e + kPrefetchEdges < nnz) prefetch_bytes(b.codes + int64_t(m.col[e + kPrefetchEdges]) * cols, cols);
        const int64_t j = m.col[e];
        const float scale = a.scale[i] * b.scale[j];
        for (int64_t h = 0; h < heads; ++h)
          out[e * heads + h] =
              float(dot(a.codes + i * cols + h * width, b.codes + j * cols + h * width, width)) * scale;
      }
    }
  });
}
