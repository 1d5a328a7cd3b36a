// GAT's attention and weighted sum on int8 rows (ops/gat_int8.py), by destination, where softmax needs the whole row.
// Weights of edges are computed in a thread's scratch, where they are used; backward recomputes them.

static int64_t longest_row(const int64_t* rowptr, int64_t first, int64_t last) {
  int64_t most = 0;
  for (int64_t i = first; i < last; ++i) most = max_of(most, rowptr[i + 1] - rowptr[i]);
  return most;
}

// w = dropout(softmax) of the edges of row i, [degree, heads], and by head the logarithm of what softmax divided by.
template <int H>
GOSSAMER_INLINE void gat_weights(const Csr& m, const GatTerms& a, float slope, const DropRule* rule, int64_t i,
                                 int64_t heads, float* w, float* log_sums) {
  const int64_t begin = m.rowptr[i], n = (m.rowptr[i + 1] - begin) * heads;
  if constexpr (H > 0) {
    const f32x16 dst = dst_lanes<H>(a, i);
    const SoftmaxSums found = softmax_row<H>(n, w, [&](int64_t k, int64_t count) {
      return activate<kLeakyRelu>(gat_sums<H>(m, a, dst, begin + k / H, count), slope);
    });
    float top[kLanes], sum[kLanes];
    store(top, found.top);
    store(sum, found.sum);
    for (int h = 0; h < H; ++h) log_sums[h] = log_sum(top[h], sum[h]);
  } else {
    gat_row_of(heads, m, a, slope, i, w, log_sums);
  }
  i32x16 kept;
  for (int64_t c = 0; rule && c < n; c += kLanes)
    put_part(w + c, drop16<false>(load_part(w + c, n - c), *rule, uint64_t(begin * heads + c), &kept), n - c, false);
}

// out_i = sum over the edges of w_e h_j + bias, and log_sums; or, where `dots` is there, in place of out_i its product
// with g_i by head.
static bool gat_sum_int8(Csr m, GatTerms a, GatRule rule, Int8Rows h, const float* bias, float* out, float* log_sums,
                         Int8Rows g, float* dots, int64_t cols, int64_t heads, int threads) {
  const int64_t width = cols / heads, nnz = m.rowptr[m.num_dst];
  const DropRule dropping = drop_rule(rule.drop, rule.seed);
  const bool streaming = !dots && width % kLanes == 0 && streams(out, m.num_dst * cols);
  bool enough = true;
  by_heads(heads, [&](auto tag) {
    constexpr int H = decltype(tag)::value;
    parallel_rows(m.rowptr, m.num_dst, cols, threads, [&](int64_t first, int64_t last) {
      Buffer<float> weights(padded(longest_row(m.rowptr, first, last) * heads)), scratch(cols);
      if (!weights.data || !scratch.data) {
        __atomic_store_n(&enough, false, __ATOMIC_RELAXED);
        return;
      }
      const EdgeWeight by_edge = {weights.data, h.scale, nullptr, heads, nullptr};
      const auto add = [bias](int64_t c) { return RowAdd<int8_t>{bias ? bias + c : nullptr, nullptr, 0, nullptr}; };
      for (int64_t i = first; i < last; ++i) {
        const int64_t begin = m.rowptr[i], n = m.rowptr[i + 1] - begin;
        gat_weights<H>(m, a, rule.slope, rule.drop > 0 ? &dropping : nullptr, i, heads, weights.data,
                       log_sums + i * heads);
        const Csr here = {nullptr, m.col + begin, 0};
        float* row = dots ? scratch.data : out + i * cols;
        const RowEdges edges = {0, n, nnz - begin, streaming, 1.0f};
        for (int64_t k = 0; k < heads; ++k)
          spmm_columns(here, by_edge, edges, add, k, h.codes, row, cols, k * width, (k + 1) * width);
        if (dots) code_dots(g.codes + i * cols, g.scale[i], row, nullptr, heads, width, dots + i * heads);
      }
      stream_fence();
    });
  });
  return enough;
}
