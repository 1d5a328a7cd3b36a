// Normalisation over each row, with activation and dropout: statistics and result while the row is in the L1 cache.

// Sum of f(c, count) over the columns of one row; lanes beyond the row count as f's zero.
template <typename F>
GOSSAMER_INLINE float row_sum(int64_t cols, const F& f) {
  f32x16 sum = splat(0.0f);
  for_vectors(cols, [&](int64_t c, int64_t count) GOSSAMER_INLINED { sum += f(c, count); });
  return sum_lanes(sum);
}

GOSSAMER_INLINE float row_mean(const float* row, int64_t cols, float inverse) {
  return row_sum(cols, [&](int64_t c, int64_t count) { return load_part(row + c, count); }) * inverse;
}
GOSSAMER_INLINE float row_var(const float* row, int64_t cols, float mean, float inverse) {
  const auto square = [&](int64_t c, int64_t count) {
    const f32x16 d = load_part(row + c, count, mean) - mean;
    return d * d;
  };
  return row_sum(cols, square) * inverse;
}

template <int A>
static void layer_norm_as(const float* x, RowAffine f, Pointwise pw, float* out, float* mean, float* var, int64_t rows,
                          int64_t cols, int threads) {
  const Tail t = tail_of(pw);
  const bool streaming = cols % kLanes == 0 && streams(out, rows * cols);
  const float inverse = 1.0f / float(cols);
  parallel_for(rows, 1 + 16384 / (cols + 1), threads, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float* row = x + r * cols;
      const float m = row_mean(row, cols, inverse);
      mean[r] = m;
      var[r] = row_var(row, cols, m, inverse);
      const float rstd = 1.0f / __builtin_sqrtf(var[r] + f.eps);
      for_vectors(cols, [&](int64_t c, int64_t count) GOSSAMER_INLINED {
        f32x16 z = (load_part(row + c, count) - m) * rstd;
        if (f.weight) z = z * load_part(f.weight + c, count);
        if (f.bias) z = z + load_part(f.bias + c, count);
        put_part(out + r * cols + c, forward16<A>(z, t, r * cols + c), count, streaming);
      });
    }
    stream_fence();
  });
}
static void layer_norm(const float* x, RowAffine f, Pointwise pw, float* out, float* mean, float* var, int64_t rows,
                       int64_t cols, int threads) {
  by_act(pw.act, [&](auto tag) { layer_norm_as<decltype(tag)::value>(x, f, pw, out, mean, var, rows, cols, threads); });
}

// g is the gradient of z, h = g * weight: dx = rstd * (h - mean h - x_hat * mean(h x_hat)). `partial` takes the sums of
// g and g x_hat over the rows of each chunk.
template <int A>
static void layer_norm_backward_as(const float* dout, const float* x, RowAffine f, Pointwise pw, const float* mean,
                                   const float* var, float* partial, float* dx, float* dweight, float* dbias,
                                   int64_t rows, int64_t cols, int threads) {
  const Tail t = tail_of(pw);
  const int64_t chunks = ceil_div(rows, kChunkRows), stride = padded(cols);
  const bool streaming = cols % kLanes == 0 && streams(dx, rows * cols);
  const float inverse = 1.0f / float(cols);
  parallel_for(chunks, 1, threads, [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      float* sums = partial + chunk * 2 * stride;
      std::memset(sums, 0, size_t(2 * stride) * sizeof(float));
      for (int64_t r = chunk * kChunkRows; r < min_of(rows, (chunk + 1) * kChunkRows); ++r) {
        const float rstd = 1.0f / __builtin_sqrtf(var[r] + f.eps);
        const auto x_hat = [&](int64_t c, int64_t count) {
          return (load_part(x + r * cols + c, count, mean[r]) - mean[r]) * rstd;
        };
        const auto gradient = [&](int64_t c, int64_t count) {  // of z
          f32x16 z = x_hat(c, count);
          if (f.weight) z = z * load_part(f.weight + c, count);
          if (f.bias) z = z + load_part(f.bias + c, count);
          return backward16<A>(load_part(dout + r * cols + c, count), z, t, r * cols + c);
        };
        f32x16 sum_h = splat(0.0f), sum_hx = sum_h;
        for_vectors(cols, [&](int64_t c, int64_t count) GOSSAMER_INLINED {
          const f32x16 g = gradient(c, count), xh = x_hat(c, count);
          store(sums + c, load<f32x16>(sums + c) + g);
          store(sums + stride + c, load<f32x16>(sums + stride + c) + g * xh);
          const f32x16 h = f.weight ? g * load_part(f.weight + c, count) : g;
          sum_h += h;
          sum_hx += h * xh;
        });
        const float mean_h = sum_lanes(sum_h) * inverse, mean_hx = sum_lanes(sum_hx) * inverse;
        for_vectors(cols, [&](int64_t c, int64_t count) GOSSAMER_INLINED {
          const f32x16 g = gradient(c, count);
          const f32x16 h = f.weight ? g * load_part(f.weight + c, count) : g;
          const f32x16 d = (h - mean_h - x_hat(c, count) * mean_hx) * rstd;
          put_part(dx + r * cols + c, d, count, streaming);
        });
      }
    }
    stream_fence();
  });
  merge_sums(partial, rows, cols, dbias, dweight);
}
static void layer_norm_backward(const float* dout, const float* x, RowAffine f, Pointwise pw, const float* mean,
                                const float* var, float* partial, float* dx, float* dweight, float* dbias, int64_t rows,
                                int64_t cols, int threads) {
  by_act(pw.act, [&](auto tag) {
    layer_norm_backward_as<decltype(tag)::value>(dout, x, f, pw, mean, var, partial, dx, dweight, dbias, rows, cols,
                                                 threads);
  });
}
