// Softmax over the edges of each row, per head. The logits of a row are contiguous, [degree, heads], and stay in L1.

// (e^r - 1) / r for |r| <= 1/2.
GOSSAMER_INLINE f32x16 exp_series(f32x16 r) {
  f32x16 p = splat(1.0f / 5040.0f);
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  return p * r + 1.0f;
}

// e^x for x <= 0, to 2 units in the last place: x = n ln 2 + r, a polynomial for e^r, n added to the exponent.
GOSSAMER_INLINE f32x16 exp_nonpositive(f32x16 x) {
  const float log2_e = 1.44269504088896341f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  const f32x16 clamped =
      select(x < splat(-87.0f), splat(-87.0f), x);  // below, the result is flushed to zero; keeps NaN
  const i32x16 n = nearest_int(clamped * log2_e);
  const f32x16 nf = to_float(n);
  const f32x16 r = clamped - nf * ln2_high - nf * ln2_low;
  const f32x16 scaled = (exp_series(r) * r + 1.0f) * bits_of<f32x16>((n + 127) << 23);
  return select(x < splat(-87.0f), splat(0.0f), select(x != x, x, scaled));
}

static void edge_softmax(Csr m, const float* logits, float* out, int64_t heads, int threads) {
  parallel_rows(m.rowptr, m.num_dst, heads * 8, threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = m.rowptr[i] * heads, n = m.rowptr[i + 1] * heads - begin;
      const float* in = logits + begin;
      float* p = out + begin;
      for (int64_t h = 0; h < heads; ++h) {
        float top = -__builtin_inff();
        for (int64_t k = h; k < n; k += heads) top = in[k] > top || in[k] != in[k] ? in[k] : top;
        if (top == -__builtin_inff()) top = 0;  // a row of minus infinities: all weights 0, not NaN
        for (int64_t k = h; k < n; k += heads) p[k] = in[k] - top;
      }
      int64_t k = 0;
      for (; k + kLanes <= n; k += kLanes) store(p + k, exp_nonpositive(load<f32x16>(p + k)));
      if (k < n) {
        float tail[kLanes] = {};
        std::memcpy(tail, p + k, size_t(n - k) * sizeof(float));
        store(tail, exp_nonpositive(load<f32x16>(tail)));
        std::memcpy(p + k, tail, size_t(n - k) * sizeof(float));
      }
      for (int64_t h = 0; h < heads; ++h) {
        float sum = 0;
        for (int64_t q = h; q < n; q += heads) sum += p[q];
        const float inverse = sum == 0 ? 0.0f : 1.0f / sum;
        for (int64_t q = h; q < n; q += heads) p[q] *= inverse;
      }
    }
  });
}

// dlogits = p * (dout - sum over the row of p * dout)
static void edge_softmax_backward(Csr m, const float* out, const float* dout, float* dlogits, int64_t heads,
                                  int threads) {
  parallel_rows(m.rowptr, m.num_dst, heads * 4, threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = m.rowptr[i] * heads, end = m.rowptr[i + 1] * heads;
      for (int64_t h = 0; h < heads; ++h) {
        float sum = 0;
        for (int64_t k = begin + h; k < end; k += heads) sum += out[k] * dout[k];
        for (int64_t k = begin + h; k < end; k += heads) dlogits[k] = out[k] * (dout[k] - sum);
      }
    }
  });
}
