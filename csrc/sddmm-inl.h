// One dot product per edge and head: out[e, h] = <a_i, b_j> over the columns of head h, for e = (i, j).

GOSSAMER_INLINE float dot(const float* a, const float* b, int64_t n) {
  f32x16 sum0 = splat(0.0f), sum1 = sum0;
  int64_t c = 0;
  for (; c + 2 * kLanes <= n; c += 2 * kLanes) {
    sum0 += load<f32x16>(a + c) * load<f32x16>(b + c);
    sum1 += load<f32x16>(a + c + kLanes) * load<f32x16>(b + c + kLanes);
  }
  if (c + kLanes <= n) {
    sum0 += load<f32x16>(a + c) * load<f32x16>(b + c);
    c += kLanes;
  }
  float total = sum_lanes(sum0 + sum1);
  for (; c < n; ++c) total += a[c] * b[c];
  return total;
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
