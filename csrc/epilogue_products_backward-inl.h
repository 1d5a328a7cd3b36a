// The backward of products of an epilogue's result, in one pass over the rows (ops/epilogue_products_backward.py):
// dW_k, and the gradient dz of the activation's input. After ReLU and dropout most of the result is zero, and so is its
// derivative: zeros are not multiplied. For a few rows at a time, each column has a mask of the rows that count, its
// nonzero ones. For each of these, the row's gradients are read once and used twice: in the product with the column's
// weights, which is dz, and in the column's dW, which stays in registers.

constexpr int64_t kBackRows = 32;   // at a time: a bit each
constexpr int64_t kBackOuts = 192;  // gradients at a time, of all products beside each other: they stay in L1
#if defined(__AVX512F__)
constexpr int kBackVectors = 12, kBackTogether = 4;  // of gradients, and rows of them: as many as registers hold
#elif defined(__AVX2__)
constexpr int kBackVectors = 3, kBackTogether = 2;
#else
constexpr int kBackVectors = 1, kBackTogether = 1;
#endif

// Outputs of all products as blocks: block b begins at output b * kBackOuts, whole vectors wide.
struct Outs {
  int64_t padded;
  int64_t blocks() const { return ceil_div(padded, kBackOuts); }
  int64_t width(int64_t b) const { return min_of(kBackOuts, padded - b * kBackOuts); }
  // Where row r of n, output o stands in [blocks][n][width].
  int64_t place(int64_t n, int64_t r, int64_t o) const {
    const int64_t b = o / kBackOuts;
    return b * kBackOuts * n + r * width(b) + o % kBackOuts;
  }
};

// A block of rows; one more row, of zeros, pads the rows that count to whole groups.
struct BackTile {
  int64_t cols, stride;
  Buffer<float> gs, out, slope, dz;
  Buffer<uint32_t> counts;  // [cols], a bit for each row
  BackTile(int64_t columns, int64_t outs)
      : cols(columns),
        stride(padded(columns)),
        gs((kBackRows + 1) * outs),
        out((kBackRows + 1) * stride),
        slope(kBackRows * stride),
        dz(kBackRows * stride),
        counts(padded(columns)) {}
  bool enough() const { return gs.data && out.data && slope.data && dz.data && counts.data; }
};

// All of a row counts if its gradients are not finite, so that they show in all of dW.
template <int A>
static void fill_row(const float* x, const ColumnAffine& f, const Tail& t, int64_t row, int64_t r, bool all,
                     BackTile* to) {
  const int64_t cols = to->cols;
  for_vectors(cols, [&](int64_t c, int64_t count) GOSSAMER_INLINED {
    const int64_t at = row * cols + c;
    prefetch_rows(x + at, cols, kRowsAhead);
    const f32x16 z = affine16(f, load_part(x + at, count), c, count), zero = splat(0.0f);
    f32x16 y = activate<A>(z, t.slope), slope = derivative<A>(z, t.slope);
    if (t.drops) {
      const f32x16 keep = keep_scale(t, at);
      y = select(keep > zero, y * keep, zero);
      slope = slope * keep;
    }
    store(to->out.data + r * to->stride + c, y);
    store(to->slope.data + r * to->stride + c, slope);
    const i32x16 counts = all ? splat(-1) : (y != zero) | (slope != zero);
    uint32_t* masks = to->counts.data + c;
    store(masks, load<u32x16>(masks) | (bits_of<u32x16>(counts) & splat(uint32_t(1) << r)));
  });
}

// The gradients of n rows, as blocks; a bit for each row that is finite.
static uint32_t gather_gradients(const ProductGrad* products, int count, Outs outs, int64_t first, int64_t n,
                                 float* to) {
  uint32_t finite = 0;
  for (int64_t r = 0; r < n; ++r) {
    int64_t o = 0;
    for (int k = 0; k < count; ++k) {
      const float* g = products[k].g + (first + r) * products[k].outs;
      for (int64_t done = 0, part; done < products[k].outs; done += part, o += part) {
        part = min_of(products[k].outs - done, kBackOuts - o % kBackOuts);
        std::memcpy(to + outs.place(kBackRows + 1, r, o), g + done, size_t(part) * sizeof(float));
      }
    }
    i32x16 top = splat(0);
    for (o = 0; o < outs.padded; o += kLanes)
      top = maximum(top, load<i32x16>(to + outs.place(kBackRows + 1, r, o)) & splat(0x7fffffff));
    finite |= uint32_t(max_lanes(top) < 0x7f800000) << r;
  }
  return finite;
}

// The rows that count of one column, filled up to whole groups.
struct ColumnRows {
  int64_t count, padded;
  int64_t row[kBackRows + kBackTogether];
  float out[kBackRows + kBackTogether];
  alignas(64) float dots[(kBackRows + kBackTogether) * kLanes];
  void fill(uint32_t mask, const float* column, int64_t stride) {
    count = 0;
    for (; mask; mask &= mask - 1) row[count++] = __builtin_ctz(mask);
    for (padded = count; padded % kBackTogether; ++padded) row[padded] = kBackRows;
    for (int64_t i = 0; i < padded; ++i) out[i] = column[row[i] * stride];
    std::memset(dots, 0, size_t(padded) * kLanes * sizeof(float));
  }
};

// V vectors of a column's outputs.
template <int V>
GOSSAMER_INLINE void add_column(ColumnRows* rows, const float* g, int64_t width, const float* weights, float* dw) {
  f32x16 acc[V];
#pragma GCC unroll 12
  for (int v = 0; v < V; ++v) acc[v] = load<f32x16>(dw + v * kLanes);
  for (int64_t i = 0; i < rows->padded; i += kBackTogether) {
    f32x16 dot[kBackTogether], by[kBackTogether];
    const float* from[kBackTogether];
#pragma GCC unroll 4
    for (int k = 0; k < kBackTogether; ++k) {
      dot[k] = load<f32x16>(rows->dots + (i + k) * kLanes), by[k] = splat(rows->out[i + k]);
      from[k] = g + rows->row[i + k] * width;
    }
#pragma GCC unroll 12
    for (int v = 0; v < V; ++v) {
      const f32x16 w = load<f32x16>(weights + v * kLanes);
#pragma GCC unroll 4
      for (int k = 0; k < kBackTogether; ++k) {
        const f32x16 here = load<f32x16>(from[k] + v * kLanes);
        acc[v] = fused(by[k], here, acc[v]);
        dot[k] = fused(here, w, dot[k]);
      }
    }
#pragma GCC unroll 4
    for (int k = 0; k < kBackTogether; ++k) store(rows->dots + (i + k) * kLanes, dot[k]);
  }
#pragma GCC unroll 12
  for (int v = 0; v < V; ++v) store(dw + v * kLanes, acc[v]);
}

// The tile's products: dz before it is multiplied by slopes, and its share of dW.
static void add_tile(BackTile* tile, Outs outs, const float* weights, float* dw) {
  ColumnRows rows;
  for (int64_t b = 0; b < outs.blocks(); ++b)
    for (int64_t c = 0; c < tile->cols; ++c) {
      const int64_t width = outs.width(b), at = b * kBackOuts * tile->cols + c * width;
      rows.fill(tile->counts.data[c], tile->out.data + c, tile->stride);
      for (int64_t o = 0; o < width; o += kBackVectors * kLanes)
        by_vectors<kBackVectors>(int(min_of<int64_t>(kBackVectors, (width - o) / kLanes)), [&](auto tag) {
          add_column<decltype(tag)::value>(&rows, tile->gs.data + b * kBackOuts * (kBackRows + 1) + o, width,
                                           weights + at + o, dw + at + o);
        });
      for (int64_t i = 0; i < rows.count; ++i) {
        float* to = tile->dz.data + rows.row[i] * tile->stride + c;
        const float sum = sum_lanes(load<f32x16>(rows.dots + i * kLanes));
        *to = b ? *to + sum : sum;
      }
    }
}

template <int A>
static bool epilogue_products_backward_as(const float* x, ColumnAffine f, Tail t, const ProductGrad* products,
                                          int count, Outs outs, const float* weights, float* partial, float* dz,
                                          int64_t rows, int64_t cols, int threads) {
  const int64_t slabs = grad_slabs(rows, outs.padded, cols), steps = ceil_div(rows, kBackRows);
  const bool streaming = cols % kLanes == 0 && streams(dz, rows * cols);
  bool enough = true;
  parallel_for(slabs, 1, threads, [&](int64_t first_slab, int64_t last_slab) {
    BackTile tile(cols, outs.padded);
    if (!tile.enough()) {
      __atomic_store_n(&enough, false, __ATOMIC_RELAXED);
      return;
    }
    for (int64_t slab = first_slab; slab < last_slab; ++slab) {
      float* dw = partial + slab * cols * outs.padded;
      std::memset(dw, 0, size_t(cols * outs.padded) * sizeof(float));
      for (int64_t step = steps * slab / slabs; step < steps * (slab + 1) / slabs; ++step) {
        const int64_t first = step * kBackRows, n = min_of(kBackRows, rows - first);
        const uint32_t finite = gather_gradients(products, count, outs, first, n, tile.gs.data);
        std::memset(tile.counts.data, 0, size_t(cols) * sizeof(uint32_t));
        for (int64_t r = 0; r < n; ++r) fill_row<A>(x, f, t, first + r, r, !(finite >> r & 1), &tile);
        add_tile(&tile, outs, weights, dw);
        for (int64_t r = 0; r < n; ++r)
          for_vectors(cols, [&](int64_t k, int64_t left) GOSSAMER_INLINED {
            const f32x16 slope = load<f32x16>(tile.slope.data + r * tile.stride + k), zero = splat(0.0f);
            const f32x16 dot = load<f32x16>(tile.dz.data + r * tile.stride + k);
            put_part(dz + (first + r) * cols + k, select(slope != zero, dot * slope, zero), left, streaming);
          });
      }
    }
    stream_fence();
  });
  return enough;
}

static bool epilogue_products_backward(const float* x, ColumnAffine f, Pointwise pw, const ProductGrad* products,
                                       int count, float* partial, float* dz, int64_t rows, int64_t cols, int threads) {
  int64_t sum = 0;
  for (int k = 0; k < count; ++k) sum += products[k].outs;
  const Outs outs = {padded(sum)};
  const int64_t slabs = grad_slabs(rows, outs.padded, cols), numel = cols * outs.padded;
  Buffer<float> weights(numel), dw(numel);
  if (!weights.data || !dw.data) return false;
  const auto each = [&](const auto& f) GOSSAMER_INLINED {
    int64_t start = 0;
    for (int k = 0; k < count; start += products[k++].outs)
      for (int64_t o = 0; o < products[k].outs; ++o)
        for (int64_t c = 0; c < cols; ++c) f(products[k], o * cols + c, outs.place(cols, c, start + o));
  };
  each([&](const ProductGrad& one, int64_t from, int64_t to) { weights.data[to] = one.weight[from]; });
  bool enough = false;
  by_act(pw.act, [&](auto tag) {
    enough = epilogue_products_backward_as<decltype(tag)::value>(x, f, tail_of(pw), products, count, outs, weights.data,
                                                                 partial, dz, rows, cols, threads);
  });
  if (!enough) return false;
  add_slabs(partial, dw.data, slabs, numel, threads);
  each([&](const ProductGrad& one, int64_t to, int64_t from) { one.dw[to] = dw.data[from]; });
  return true;
}
