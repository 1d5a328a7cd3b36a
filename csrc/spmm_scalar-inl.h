// Neighbour sums of compressed features, straight from their codes (ops/spmm_scalar.py): sixteen columns are decoded in
// a register for every edge, so that decoded rows are never in memory. Products and sums are those of spmm-inl.h, in
// the same order: the same bits as decoding the rows first.

// Rows of codes that are decoded and weighted.
template <int Bits, bool PerColumn>
struct WeightedCodes {
  const uint8_t* codes;
  int64_t bytes;
  TableEntries<Bits, PerColumn> entries;
  explicit WeightedCodes(const ScalarRows& from)
      : codes(from.codes), bytes(ceil_div(from.cols * Bits, 8)), entries(from.table, from.cols) {}
  GOSSAMER_INLINED const uint8_t* at(int64_t row, int64_t c) const { return codes + row * bytes + c * Bits / 8; }
  // Columns c .. c + count - 1 of a row, times `weight`; the others of sixteen are anything.
  GOSSAMER_INLINED f32x16 operator()(int64_t row, int64_t c, int64_t count, float weight) const {
    const uint8_t* from = at(row, c);
    uint8_t part[2 * Bits] = {};
    if (count < kLanes) {  // a row's last codes may be the last of all
      std::memcpy(part, from, size_t(ceil_div(count * Bits, 8)));
      from = part;
    }
    if constexpr (Bits == 1 && !PerColumn) {  // two products per edge
      uint16_t sixteen;
      std::memcpy(&sixteen, from, sizeof sixteen);
      return select(bits_to_lanes(sixteen), splat(entries.few[1] * weight), splat(entries.few[0] * weight));
    } else {
      return entries(from, c, count) * weight;
    }
  }
};

// V vectors of output row i from column c on, of `count` columns each: sixteen, or fewer of one vector that ends a row.
template <int V, typename Rows>
GOSSAMER_INLINE void spmm_scalar_tile(const Csr& a, const EdgeWeight& w, const RowEdges& row, const Rows& x, int64_t i,
                                      float diagonal, float* out, int64_t c, int64_t count) {
  f32x16 acc[V];
#pragma GCC unroll 16
  for (int v = 0; v < V; ++v) acc[v] = splat(0.0f);
  for (int64_t e = row.begin; e < row.end; ++e) {
    const int64_t ahead = e + kPrefetchEdges;
    if (ahead < row.nnz) {
      const int32_t next = a.col[ahead];
      prefetch_bytes(x.at(next, c), x.at(next, c + V * kLanes) - x.at(next, c));
      if (w.src_scale) prefetch_bytes(w.src_scale + next, sizeof(float));
    }
    const int32_t j = a.col[e];
    const float weight = edge_weight(w, e, 0, j);
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) acc[v] += x(j, c + v * kLanes, count, weight);
  }
#pragma GCC unroll 16
  for (int v = 0; v < V; ++v) {
    f32x16 sum = acc[v] * row.dst_scale;
    if (diagonal != 0) sum += x(i, c + v * kLanes, count, diagonal);
    if (count < kLanes) put_first(out + c + v * kLanes, sum, count);
    else put(out + c + v * kLanes, sum, row.streaming);
  }
}

// As many tiles of V vectors from column c on as fit into the row; the column behind them.
template <int V, typename Rows>
GOSSAMER_INLINE int64_t spmm_scalar_tiles(const Csr& a, const EdgeWeight& w, const RowEdges& row, const Rows& x,
                                          int64_t i, float diagonal, float* out, int64_t c, int64_t cols) {
  for (; c + V * kLanes <= cols; c += V * kLanes)
    spmm_scalar_tile<V>(a, w, row, x, i, diagonal, out, c, int64_t(kLanes));
  return c;
}

template <int Bits, bool PerColumn>
static void spmm_scalar_rows(const Csr& a, const EdgeWeight& w, const RowEnd& end, const ScalarRows& from, float* out,
                             int threads) {
  const int64_t cols = from.cols;
  const bool streaming = cols % kLanes == 0 && streams(out, a.num_dst * cols);
  const WeightedCodes<Bits, PerColumn> x(from);
  parallel_rows(a.rowptr, a.num_dst, cols, threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const float dst_scale = w.dst_scale ? w.dst_scale[i] : 1.0f;
      const RowEdges row = {a.rowptr[i], a.rowptr[i + 1], a.rowptr[a.num_dst], streaming, dst_scale};
      const float diagonal = end.diagonal ? end.diagonal[i * end.step] : 0.0f;
      float* to = out + i * cols;
      int64_t c = 0;
      if constexpr (kTileVectors >= 8) c = spmm_scalar_tiles<8>(a, w, row, x, i, diagonal, to, c, cols);
      if constexpr (kTileVectors >= 4) c = spmm_scalar_tiles<4>(a, w, row, x, i, diagonal, to, c, cols);
      c = spmm_scalar_tiles<2>(a, w, row, x, i, diagonal, to, c, cols);
      c = spmm_scalar_tiles<1>(a, w, row, x, i, diagonal, to, c, cols);
      if (c < cols) spmm_scalar_tile<1>(a, w, row, x, i, diagonal, to, c, cols - c);
    }
    stream_fence();
  });
}

static void spmm_scalar(Csr a, EdgeWeight w, RowEnd end, ScalarRows from, float* out, int threads) {
  by_bits(from.bits, [&](auto tag) {
    constexpr int Bits = decltype(tag)::value;
    if (from.per_column) spmm_scalar_rows<Bits, true>(a, w, end, from, out, threads);
    else spmm_scalar_rows<Bits, false>(a, w, end, from, out, threads);
  });
}
