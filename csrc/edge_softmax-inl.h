// Softmax over the edges of each row, per head. The logits of a row are contiguous, [degree, heads], and stay in L1.
//
// Where the number of heads divides sixteen, lane l of every vector of a row belongs to head l % heads: maximum and sum
// are kept per lane, and lanes are folded once at the end. What fills no vector stays in a register until it is done.

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

// By lane, its head's largest logit and the sum of e^(logit - largest).
struct SoftmaxSums {
  f32x16 top, sum;
};
// The logarithm of the sum of e^logit; infinity where all weights are 0.
GOSSAMER_INLINE float log_sum(float top, float sum) { return sum == 0 ? __builtin_inff() : top + __builtin_logf(sum); }

// The row at p from logits(k, count), which gives its elements k .. k + 15, of which `count` are there.
template <int H, typename F>
GOSSAMER_INLINE SoftmaxSums softmax_row(int64_t n, float* p, const F& logits) {
  const int64_t whole = n / kLanes * kLanes, rest = n - whole;
  const f32x16 lowest = splat(-__builtin_inff());
  f32x16 top = lowest, tail = lowest;
  for (int64_t k = 0; k < whole; k += kLanes) {
    const f32x16 z = logits(k, kLanes);
    store(p + k, z);
    top = maximum(z, top);  // passes NaN over: it shows in the sum
  }
  if (rest) tail = keep_part(logits(whole, rest), rest, -__builtin_inff());
  top = fold_lanes<H>(maximum(tail, top), [](f32x16 a, f32x16 b) { return maximum(a, b); });
  top = select(top > lowest, top, splat(0.0f));  // a row of minus infinities: all weights 0, not NaN
  tail = exp_nonpositive(tail - top);
  f32x16 sum = tail;
  for (int64_t k = 0; k < whole; k += kLanes) {
    const f32x16 weight = exp_nonpositive(load<f32x16>(p + k) - top);
    store(p + k, weight);
    sum += weight;
  }
  sum = sum_by_head<H>(sum);
  const f32x16 inverse = select(sum != splat(0.0f), splat(1.0f) / sum, splat(0.0f));
  for (int64_t k = 0; k < whole; k += kLanes) store(p + k, load<f32x16>(p + k) * inverse);
  if (rest) put_part(p + whole, tail * inverse, rest, false);
  return {top, sum};
}

// Any number of heads: the row at p, whose logits stand there; `log_sums` by head, if it is there.
static void softmax_row_of(int64_t heads, int64_t n, float* p, float* log_sums = nullptr) {
  for (int64_t h = 0; h < heads; ++h) {
    float top = -__builtin_inff();
    for (int64_t k = h; k < n; k += heads) top = max_of(top, p[k]);
    if (top == -__builtin_inff()) top = 0;
    if (log_sums) log_sums[h] = top;
    for (int64_t k = h; k < n; k += heads) p[k] -= top;
  }
  for (int64_t k = 0; k < n; k += kLanes) put_part(p + k, exp_nonpositive(load_part(p + k, n - k)), n - k, false);
  for (int64_t h = 0; h < heads; ++h) {
    float sum = 0;
    for (int64_t k = h; k < n; k += heads) sum += p[k];
    const float inverse = sum == 0 ? 0.0f : 1.0f / sum;
    if (log_sums) log_sums[h] = log_sum(log_sums[h], sum);
    for (int64_t k = h; k < n; k += heads) p[k] *= inverse;
  }
}

static void edge_softmax(Csr m, const float* logits, float* out, int64_t heads, int threads) {
  by_heads(heads, [&](auto tag) {
    constexpr int H = decltype(tag)::value;
    parallel_rows(m.rowptr, m.num_dst, heads * 8, threads, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t begin = m.rowptr[i] * heads, n = m.rowptr[i + 1] * heads - begin;
        const float* z = logits + begin;
        if constexpr (H > 0) {
          softmax_row<H>(n, out + begin, [z](int64_t k, int64_t count) { return load_part(z + k, count); });
        } else if (n > 0) {
          std::memcpy(out + begin, z, size_t(n) * sizeof(float));
          softmax_row_of(heads, n, out + begin);
        }
      }
    });
  });
}

// dlogits = p * (dp - sum over the row of p * dp) of the row's elements; ds(k, count, dlogits) gives what is written.
template <int H, typename F>
GOSSAMER_INLINE void softmax_row_backward(int64_t n, const float* p, const float* dp, float* out, const F& ds) {
  f32x16 sum = splat(0.0f);
  for (int64_t k = 0; k < n; k += kLanes) sum += load_part(p + k, n - k) * load_part(dp + k, n - k);
  sum = sum_by_head<H>(sum);
  for (int64_t k = 0; k < n; k += kLanes) {
    const f32x16 dlogits = load_part(p + k, n - k) * (load_part(dp + k, n - k) - sum);
    put_part(out + k, ds(k, n - k, dlogits), n - k, false);
  }
}
static void softmax_row_backward_of(int64_t heads, int64_t n, const float* p, const float* dp, float* out) {
  for (int64_t h = 0; h < heads; ++h) {
    float sum = 0;
    for (int64_t k = h; k < n; k += heads) sum += p[k] * dp[k];
    for (int64_t k = h; k < n; k += heads) out[k] = p[k] * (dp[k] - sum);
  }
}

static void edge_softmax_backward(Csr m, const float* p, const float* dp, float* dlogits, int64_t heads, int threads) {
  by_heads(heads, [&](auto tag) {
    constexpr int H = decltype(tag)::value;
    parallel_rows(m.rowptr, m.num_dst, heads * 4, threads, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t at = m.rowptr[i] * heads, n = m.rowptr[i + 1] * heads - at;
        if constexpr (H > 0) {
          softmax_row_backward<H>(n, p + at, dp + at, dlogits + at, [](int64_t, int64_t, f32x16 d) { return d; });
        } else {
          softmax_row_backward_of(heads, n, p + at, dp + at, dlogits + at);
        }
      }
    });
  });
}
