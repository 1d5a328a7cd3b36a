// dW = G^T X in float32 (ops/weight_grad.py), for rows X that are there or are decoded on the way. Rows are taken in
// slabs whose number depends on the sizes alone, each with sums of its own that are added in order: unlike a library's
// product, the result does not depend on the number of threads. Within a slab, chunks of rows are laid out in panels
// that stay in the cache, and a block of outputs times a panel accumulates in registers.

constexpr int64_t kFloatChunk = 128;

// total[o + r, k] += sum over rows i of g[i, o + r] * x[i, k], for a block of outputs and a panel of columns.
GOSSAMER_INLINE void float_tile(const float* g, int64_t g_stride, const float* panel, int64_t rows, float* total,
                                int64_t in, int64_t outs_left, int64_t cols_left) {
  f32x16 acc[kRows][kPanelVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kPanelVectors; ++v) acc[r][v] = splat(0.0f);
  for (int64_t i = 0; i < rows; ++i) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const f32x16 all = splat(g[i * g_stride + r]);
#pragma GCC unroll 8
      for (int v = 0; v < kPanelVectors; ++v)
        acc[r][v] = fused(all, load<f32x16>(panel + i * kPanel + v * kLanes), acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kPanelVectors; ++v) {
      const int64_t left = cols_left - v * kLanes;
      if (r >= outs_left || left <= 0) continue;
      float* to = total + r * in + v * kLanes;
      put_part(to, load_part(to, left) + acc[r][v], left, false);
    }
}

// rows_of(first, count, scratch) gives the rows from `first` on, in scratch or where they are.
template <typename RowsOf>
static bool weight_grads(const RowsOf& rows_of, const WeightGrad* wanted, int count, int64_t rows, int64_t in,
                         int threads) {
  int64_t most = 1;
  for (int k = 0; k < count; ++k) most = max_of(most, wanted[k].outs);
  const int64_t panels = ceil_div(in, kPanel), stride = ceil_div(most, kRows) * kRows;
  const int64_t slabs = grad_slabs(rows, most, in), chunks = ceil_div(rows, kFloatChunk);
  bool enough = true;
  parallel_for(slabs, 1, threads, [&](int64_t first_slab, int64_t last_slab) {
    Buffer<float> xs(panels * kPanel * kFloatChunk), gs(stride * kFloatChunk), scratch(padded(in) * kFloatChunk);
    if (!xs.data || !gs.data || !scratch.data) {
      __atomic_store_n(&enough, false, __ATOMIC_RELAXED);
      return;
    }
    for (int64_t slab = first_slab; slab < last_slab; ++slab) {
      for (int k = 0; k < count; ++k)
        std::memset(wanted[k].partial + slab * wanted[k].outs * in, 0, size_t(wanted[k].outs * in) * sizeof(float));
      for (int64_t chunk = chunks * slab / slabs; chunk < chunks * (slab + 1) / slabs; ++chunk) {
        const int64_t first = chunk * kFloatChunk, n = min_of(kFloatChunk, rows - first);
        const float* x = rows_of(first, n, scratch.data);
        if (!x) {
          __atomic_store_n(&enough, false, __ATOMIC_RELAXED);
          return;
        }
        for (int64_t i = 0; i < n; ++i)
          for (int64_t c = 0; c < in; c += kLanes)
            store(xs.data + (c / kPanel * kFloatChunk + i) * kPanel + c % kPanel, load_part(x + i * in + c, in - c));
        for (int k = 0; k < count; ++k) {
          const int64_t outs = wanted[k].outs;
          for (int64_t i = 0; i < n; ++i)
            std::memcpy(gs.data + i * stride, wanted[k].g + (first + i) * outs, size_t(outs) * sizeof(float));
          float* total = wanted[k].partial + slab * outs * in;
          for (int64_t p = 0; p < panels; ++p)
            for (int64_t o = 0; o < outs; o += kRows)
              float_tile(gs.data + o, stride, xs.data + p * kFloatChunk * kPanel, n, total + o * in + p * kPanel, in,
                         outs - o, in - p * kPanel);
        }
      }
    }
  });
  for (int k = 0; enough && k < count; ++k)
    add_slabs(wanted[k].partial, wanted[k].dw, slabs, wanted[k].outs * in, threads);
  return enough;
}

static bool weight_grad(const float* x, const WeightGrad* wanted, int count, int64_t rows, int64_t in, int threads) {
  return weight_grads([&](int64_t first, int64_t, float*) { return x + first * in; }, wanted, count, rows, in, threads);
}

// The same for rows that are decoded from a saved epilogue (decode_epilogue).
static bool saved_weight_grad(SavedEpilogue k, RowAffine f, bool result_saved, const WeightGrad* wanted, int count,
                              int64_t rows, int64_t in, int threads) {
  return weight_grads(
      [&](int64_t first, int64_t n, float* scratch) -> const float* {
        if (!decode_epilogue(k, f, result_saved, scratch, first, n, in, 1)) return nullptr;
        return scratch;
      },
      wanted, count, rows, in, threads);
}
