// Normalisation, activation and dropout in one pass: out = drop(act(z)), z = x_hat * weight + bias (ops/norm_act.py).
// Over columns or everything, statistics come first and z is an affine function of x per column; over rows they are
// found while the row is in the cache. Backward recomputes z and the mask from x, the only saved tensor.
// Sums over rows are taken in chunks of fixed size, merged in order: they do not depend on the number of threads.

constexpr int64_t kBlockRows = 8;  // rows whose sums share one load and store of the accumulators

GOSSAMER_INLINE int64_t padded(int64_t cols) { return ceil_div(cols, kLanes) * kLanes; }

struct Tail {
  DropRule drop;
  bool drops;
  float slope;
};
GOSSAMER_INLINE Tail tail_of(const Pointwise& f) { return {drop_rule(f.p, f.seed), f.p > 0, f.slope}; }

// What dropout multiplies elements index .. index + 15 by: 1 / (1 - p) or 0.
GOSSAMER_INLINE f32x16 keep_scale(const Tail& t, int64_t index) {
  if (t.drop.none) return splat(0.0f);
  return select(random_words(t.drop.key, uint64_t(index)) >= splat(t.drop.threshold), splat(t.drop.scale), splat(0.0f));
}
template <int A>
GOSSAMER_INLINE f32x16 forward16(f32x16 z, const Tail& t, int64_t index) {
  const f32x16 y = activate<A>(z, t.slope);
  if (!t.drops) return y;
  const f32x16 keep = keep_scale(t, index);
  return select(keep > splat(0.0f), y * keep, splat(0.0f));
}
template <int A>
GOSSAMER_INLINE f32x16 backward16(f32x16 dout, f32x16 z, const Tail& t, int64_t index) {
  const f32x16 g = A == kRelu       ? select((z > splat(0.0f)) | (z != z), dout, splat(0.0f))
                   : A == kIdentity ? dout
                                    : dout * derivative<A>(z, t.slope);
  if (!t.drops) return g;
  const f32x16 keep = keep_scale(t, index);
  return select(keep > splat(0.0f), g * keep, splat(0.0f));
}

// z of column c: x * scale + shift, or x itself.
GOSSAMER_INLINE f32x16 affine16(const ColumnAffine& f, f32x16 x, int64_t c, int64_t count) {
  return f.scale ? x * load_part(f.scale + c, count) + load_part(f.shift + c, count) : x;
}

template <int A>
static void affine_forward_as(const float* x, ColumnAffine f, Pointwise pw, float* out, int64_t rows, int64_t cols,
                              int threads) {
  const Tail t = tail_of(pw);
  const bool streaming = cols % kLanes == 0 && streams(out, rows * cols);
  parallel_for(rows, 1 + 16384 / (cols + 1), threads, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      for_vectors(cols, [&](int64_t c, int64_t count) GOSSAMER_INLINED {
        const int64_t at = r * cols + c;
        const f32x16 z = affine16(f, load_part(x + at, count), c, count);
        put_part(out + at, forward16<A>(z, t, at), count, streaming);
      });
    stream_fence();
  });
}
static void affine_forward(const float* x, ColumnAffine f, Pointwise pw, float* out, int64_t rows, int64_t cols,
                           int threads) {
  by_act(pw.act, [&](auto tag) { affine_forward_as<decltype(tag)::value>(x, f, pw, out, rows, cols, threads); });
}

// dx = scale * g + by_x * (x - mean) + constant, g the gradient of z; the last two terms are there if statistics are
// x's. Elements at .. at + 15, which stand in column c; those from `count` on are not read.
template <int A>
GOSSAMER_INLINE f32x16 affine_backward16(const float* dout, const float* x, const ColumnAffine& f, const Correction& k,
                                         const Tail& t, int64_t at, int64_t c, int64_t count) {
  const f32x16 xs = load_part(x + at, count);
  f32x16 g = backward16<A>(load_part(dout + at, count), affine16(f, xs, c, count), t, at);
  if (f.scale) g = g * load_part(f.scale + c, count);
  if (!k.by_x) return g;
  return g + (xs - load_part(f.mean + c, count)) * load_part(k.by_x + c, count) + load_part(k.constant + c, count);
}
template <int A>
static void affine_backward_as(const float* dout, const float* x, ColumnAffine f, Correction k, Pointwise pw, float* dx,
                               int64_t rows, int64_t cols, int threads) {
  const Tail t = tail_of(pw);
  const bool streaming = cols % kLanes == 0 && streams(dx, rows * cols);
  parallel_for(rows, 1 + 16384 / (cols + 1), threads, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      for_vectors(cols, [&](int64_t c, int64_t count) GOSSAMER_INLINED {
        const int64_t at = r * cols + c;
        put_part(dx + at, affine_backward16<A>(dout, x, f, k, t, at, c, count), count, streaming);
      });
    stream_fence();
  });
}
static void affine_backward(const float* dout, const float* x, ColumnAffine f, Correction k, Pointwise pw, float* dx,
                            int64_t rows, int64_t cols, int threads) {
  by_act(pw.act,
         [&](auto tag) { affine_backward_as<decltype(tag)::value>(dout, x, f, k, pw, dx, rows, cols, threads); });
}

// first(rows of a block, c, count, index of its first element) adds the block's rows to two sums, held in `partial`.
template <typename F>
GOSSAMER_INLINE void sum_chunks(int64_t rows, int64_t cols, float* partial, int threads, const F& add) {
  const int64_t chunks = ceil_div(rows, kChunkRows), stride = padded(cols);
  parallel_for(chunks, 1, threads, [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      float* sums = partial + chunk * 2 * stride;
      std::memset(sums, 0, size_t(2 * stride) * sizeof(float));
      const int64_t begin = chunk * kChunkRows, end = min_of(rows, begin + kChunkRows);
      for (int64_t r = begin; r < end; r += kBlockRows)
        for_vectors(cols, [&](int64_t c, int64_t count) GOSSAMER_INLINED {
          f32x16 a = splat(0.0f), b = a;
          for (int64_t row = r; row < min_of(end, r + kBlockRows); ++row) add(row, begin, c, count, &a, &b);
          store(sums + c, load<f32x16>(sums + c) + a);
          store(sums + stride + c, load<f32x16>(sums + stride + c) + b);
        });
    }
  });
}

// f(first, count) for a few columns at a time: their sums over all chunks stay in L1, and chunks are read in order.
constexpr int64_t kColumnBlock = 64;
template <typename F>
GOSSAMER_INLINE void for_columns(int64_t cols, const F& f) {
  for (int64_t c = 0; c < cols; c += kColumnBlock) f(c, min_of(kColumnBlock, cols - c));
}

// Mean and biased variance of each column. Within a chunk, differences to its first row are summed: no cancellation.
static void column_moments(const float* x, float* partial, float* mean, float* var, int64_t rows, int64_t cols,
                           int threads) {
  const int64_t stride = padded(cols);
  sum_chunks(rows, cols, partial, threads,
             [&](int64_t r, int64_t begin, int64_t c, int64_t count, f32x16* sum, f32x16* square) GOSSAMER_INLINED {
               prefetch_rows(x + r * cols + c, cols, kBlockRows);
               const f32x16 d = load_part(x + r * cols + c, count) - load_part(x + begin * cols + c, count);
               *sum += d;
               *square += d * d;
             });
  for_columns(cols, [&](int64_t first, int64_t count) {
    double centre[kColumnBlock] = {}, spread[kColumnBlock] = {}, seen = 0;
    for (int64_t chunk = 0; chunk * kChunkRows < rows; ++chunk) {
      const double n = double(min_of(kChunkRows, rows - chunk * kChunkRows));
      const double apart = n * seen / (n + seen), share = n / (seen + n);
      const float *sums = partial + chunk * 2 * stride + first, *squares = sums + stride;
      const float* origin = x + chunk * kChunkRows * cols + first;
      for (int64_t c = 0; c < count; ++c) {
        const double sum = sums[c], gap = double(origin[c]) + sum / n - centre[c];
        spread[c] += squares[c] - sum * sum / n + gap * gap * apart;
        centre[c] += gap * share;
      }
      seen += n;
    }
    for (int64_t c = 0; c < count; ++c) {
      mean[first + c] = float(centre[c]);
      var[first + c] = float(spread[c] > 0 || spread[c] != spread[c] ? spread[c] / seen : 0);
    }
  });
}

static void merge_sums(const float* partial, int64_t rows, int64_t cols, float* first, float* second) {
  const int64_t stride = padded(cols);
  for_columns(cols, [&](int64_t begin, int64_t count) {
    double a[kColumnBlock] = {}, b[kColumnBlock] = {};
    for (int64_t chunk = 0; chunk * kChunkRows < rows; ++chunk) {
      const float *one = partial + chunk * 2 * stride + begin, *two = one + stride;
      for (int64_t c = 0; c < count; ++c) a[c] += one[c];
      for (int64_t c = 0; second && c < count; ++c) b[c] += two[c];
    }
    for (int64_t c = 0; c < count; ++c) {
      first[begin + c] = float(a[c]);
      if (second) second[begin + c] = float(b[c]);
    }
  });
}

// Sums over rows of g and of g * x_hat: the gradients of bias and weight.
template <int A>
static void affine_sums_as(const float* dout, const float* x, ColumnAffine f, Pointwise pw, float* partial,
                           float* sum_g, float* sum_gx, int64_t rows, int64_t cols, int threads) {
  const Tail t = tail_of(pw);
  sum_chunks(rows, cols, partial, threads,
             [&](int64_t r, int64_t, int64_t c, int64_t count, f32x16* sum, f32x16* with_x) GOSSAMER_INLINED {
               const int64_t at = r * cols + c;
               prefetch_rows(x + at, cols, kBlockRows);
               prefetch_rows(dout + at, cols, kBlockRows);
               const f32x16 xs = load_part(x + at, count);
               const f32x16 g = backward16<A>(load_part(dout + at, count), affine16(f, xs, c, count), t, at);
               *sum += g;
               *with_x += g * ((xs - load_part(f.mean + c, count)) * load_part(f.rstd + c, count));
             });
  merge_sums(partial, rows, cols, sum_g, sum_gx);
}
static void affine_sums(const float* dout, const float* x, ColumnAffine f, Pointwise pw, float* partial, float* sum_g,
                        float* sum_gx, int64_t rows, int64_t cols, int threads) {
  by_act(pw.act, [&](auto tag) {
    affine_sums_as<decltype(tag)::value>(dout, x, f, pw, partial, sum_g, sum_gx, rows, cols, threads);
  });
}

static void column_sums(const float* x, float* partial, float* sums, int64_t rows, int64_t cols, int threads) {
  sum_chunks(rows, cols, partial, threads,
             [&](int64_t r, int64_t, int64_t c, int64_t count, f32x16* sum, f32x16*) GOSSAMER_INLINED {
               prefetch_rows(x + r * cols + c, cols, kBlockRows);
               *sum += load_part(x + r * cols + c, count);
             });
  merge_sums(partial, rows, cols, sums, nullptr);
}
