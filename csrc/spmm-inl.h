// Neighbour sums: out_i = dst_scale_i * sum over edges e = (i, j) of value_e * src_scale_j * x_j + diagonal_i * x_i
// + rows_i + bias. A row of the output stays in registers while its sources are gathered; source rows are
// prefetched.

#if defined(__AVX512F__)
constexpr int kTileVectors = 8;
#elif defined(__AVX2__)
constexpr int kTileVectors = 4;
#else
constexpr int kTileVectors = 2;
#endif
constexpr int64_t kPrefetchEdges = 16;

// The edges of one output row, and how far ahead the source rows may be looked up.
struct RowEdges {
  int64_t begin, end, nnz;
  bool streaming;
  float dst_scale;
};

// What follows a row's sum, at one column: its bias, another row, and the node's own row times a number.
template <typename In>
struct RowAdd {
  const float* bias;
  const In* own;
  float own_weight;
  const float* rows;
};
template <typename In>
GOSSAMER_INLINE f32x16 add16(const RowAdd<In>& end, f32x16 sum, int c) {
  if (end.own) sum += load_float(end.own + c) * end.own_weight;
  if (end.rows) sum += load<f32x16>(end.rows + c);
  return end.bias ? sum + load<f32x16>(end.bias + c) : sum;
}

GOSSAMER_INLINE float edge_weight(const EdgeWeight& w, int64_t edge, int64_t head, int32_t j) {
  float weight = w.value ? w.value[edge * w.heads + head] : 1.0f;
  return w.src_scale ? weight * w.src_scale[j] : weight;
}

// V vectors of one row; the last begins at column `last`, and may repeat columns of the one before it.
template <int V, typename In, typename Out>
GOSSAMER_INLINE void spmm_tile(const Csr& a, const EdgeWeight& w, RowEdges row, RowAdd<In> end, int64_t head,
                               const In* x, int64_t cols, Out* out, int last) {
  const auto column = [last](int v) { return v + 1 < V ? v * kLanes : last; };
  f32x16 acc[V];
#pragma GCC unroll 16
  for (int v = 0; v < V; ++v) acc[v] = splat(0.0f);
  for (int64_t e = row.begin; e < row.end; ++e) {
    const int64_t ahead = e + kPrefetchEdges;
    if (ahead < row.nnz) {
      prefetch_bytes(x + int64_t(a.col[ahead]) * cols, (last + kLanes) * sizeof(In));
      if (w.src_scale) prefetch_bytes(w.src_scale + a.col[ahead], sizeof(float));
    }
    const int32_t j = a.col[e];
    const float weight = edge_weight(w, e, head, j);
    const In* xj = x + int64_t(j) * cols;
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) acc[v] += load_float(xj + column(v)) * weight;
  }
#pragma GCC unroll 16
  for (int v = 0; v < V; ++v) put(out + column(v), add16(end, acc[v] * row.dst_scale, column(v)), row.streaming);
}

template <typename In, typename Out>
GOSSAMER_INLINE void spmm_tail(const Csr& a, const EdgeWeight& w, RowEdges row, RowAdd<In> end, int64_t head,
                               const In* x, int64_t cols, Out* out, int width) {
  float acc[kLanes] = {};
  for (int64_t e = row.begin; e < row.end; ++e) {
    const int32_t j = a.col[e];
    const float weight = edge_weight(w, e, head, j);
    const In* xj = x + int64_t(j) * cols;
    for (int c = 0; c < width; ++c) acc[c] += weight * load_scalar(xj + c);
  }
  for (int c = 0; c < width; ++c) {
    float sum = acc[c] * row.dst_scale;
    if (end.own) sum += load_scalar(end.own + c) * end.own_weight;
    if (end.rows) sum += end.rows[c];
    store_scalar(out + c, end.bias ? sum + end.bias[c] : sum);
  }
}

// Columns [begin, end) of one row, at `out`; all of them belong to one head. add(c): what follows from column c on.
template <typename In, typename Out, typename Add>
GOSSAMER_INLINE void spmm_columns(const Csr& a, const EdgeWeight& w, const RowEdges& row, const Add& add, int64_t head,
                                  const In* x, Out* out, int64_t cols, int64_t begin, int64_t end) {
  int64_t c = begin;
  while (end - c >= kLanes) {
    const int vectors = int(min_of<int64_t>(kTileVectors, ceil_div(end - c, kLanes)));
    const int width = int(min_of<int64_t>(vectors * kLanes, end - c));
    switch (vectors) {
#define GOSSAMER_TILE(V)                                                                                   \
  case V:                                                                                                  \
    spmm_tile<(V <= kTileVectors ? V : 1)>(a, w, row, add(c), head, x + c, cols, out + c, width - kLanes); \
    break
      GOSSAMER_TILE(1);
      GOSSAMER_TILE(2);
      GOSSAMER_TILE(3);
      GOSSAMER_TILE(4);
      GOSSAMER_TILE(5);
      GOSSAMER_TILE(6);
      GOSSAMER_TILE(7);
      GOSSAMER_TILE(8);
#undef GOSSAMER_TILE
    }
    c += width;
  }
  if (c < end) spmm_tail(a, w, row, add(c), head, x + c, cols, out + c, int(end - c));
}

// The same of output row i, whose edges are row i - shift of `a`.
template <typename In, typename Out>
static void spmm_row(const Csr& a, int64_t shift, const EdgeWeight& w, const RowEnd& end_of_row, int64_t i,
                     int64_t head, const In* x, Out* out, int64_t cols, int64_t begin, int64_t end, bool streaming) {
  const float dst_scale = w.dst_scale ? w.dst_scale[i] : 1.0f;
  const int64_t* rowptr = a.rowptr + (i - shift);
  const RowEdges row = {rowptr[0], rowptr[1], a.rowptr[a.num_dst], streaming, dst_scale};
  const float diagonal = end_of_row.diagonal ? end_of_row.diagonal[i * end_of_row.step] : 0.0f;
  float own_weight = diagonal;
  if (diagonal != 0 && end_of_row.own_scale) own_weight *= end_of_row.own_scale[i];  // a destination may be no source
  const auto add = [&](int64_t c) {
    return RowAdd<In>{end_of_row.bias ? end_of_row.bias + c : nullptr, diagonal != 0 ? x + i * cols + c : nullptr,
                      own_weight, end_of_row.rows ? end_of_row.rows + i * cols + c : nullptr};
  };
  spmm_columns(a, w, row, add, head, x, out, cols, begin, end);
}

constexpr int64_t kKeptRows = 1024, kKeptEdges = 4096;

// f(matrix, shift, weights, first, last) for rows [first, last), which are rows from `first - shift` on of the matrix:
// that itself, or, where w.keep leaves edges out, a small one with the edges that are left of each block of rows. So
// the loops over edges have nothing to test, prefetch as ever, and sum in the same order. False: no memory left.
template <typename F>
GOSSAMER_INLINE bool over_kept(const Csr& a, const EdgeWeight& w, int64_t first, int64_t last, const F& f) {
  if (!w.keep) {
    f(a, int64_t(0), w, first, last);
    return true;
  }
  int64_t most = 0;
  for (int64_t i = first; i < last; ++i) most = max_of(most, a.rowptr[i + 1] - a.rowptr[i]);
  Buffer<int64_t> rowptr(kKeptRows + 1);
  Buffer<int32_t> col(kKeptEdges + most);
  Buffer<float> value(w.value ? kKeptEdges + most : 0);
  if (!rowptr.data || !col.data || !value.data) return false;
  for (int64_t begin = first, end = first; begin < last; begin = end) {
    int64_t kept = 0;
    while (end < last && end - begin < kKeptRows && kept < kKeptEdges) {
      for (int64_t e = a.rowptr[end]; e < a.rowptr[end + 1]; ++e) {
        col.data[kept] = a.col[e];
        if (w.value) value.data[kept] = w.value[e];
        kept += w.keep[a.col[e]] != 0;
      }
      rowptr.data[++end - begin] = kept;
    }
    const EdgeWeight left = {w.value ? value.data : nullptr, w.src_scale, w.dst_scale, 1, nullptr};
    f(Csr{rowptr.data, col.data, end - begin}, begin, left, begin, end);
  }
  return true;
}

template <typename In, typename Out>
static bool spmm(Csr a, EdgeWeight w, RowEnd end, const In* x, Out* out, int64_t cols, int threads) {
  const int64_t width = cols / w.heads;
  const bool streaming = width % kLanes == 0 && streams(out, a.num_dst * cols);
  bool enough = true;
  parallel_rows(a.rowptr, a.num_dst, cols, threads, [&](int64_t first, int64_t last) {
    const auto sum = [&](const Csr& m, int64_t shift, const EdgeWeight& of, int64_t begin, int64_t stop) {
      for (int64_t i = begin; i < stop; ++i)
        for (int64_t head = 0; head < of.heads; ++head)
          spmm_row(m, shift, of, end, i, head, x, out + i * cols, cols, head * width, (head + 1) * width, streaming);
    };
    if (!over_kept(a, w, first, last, sum)) __atomic_store_n(&enough, false, __ATOMIC_RELAXED);
    stream_fence();
  });
  return enough;
}
