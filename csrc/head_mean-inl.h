// Neighbour sums whose heads are averaged: out_i = 1/H sum over edges e = (i, j) and heads h of value[e, h] * x[j, h].
// The rows of all heads are read, one row is written; backward gathers that one row per edge, and no row of x.

// Columns of one head at a time, part of the order in which dot products are summed; edges of one source at a time:
// what they need stays in L1 for all heads.
constexpr int64_t kMeanColumns = 4 * kLanes, kMeanEdges = 32;

// Columns first .. of each head, in V vectors of `part` elements. The last begins at `last`: it may repeat columns of
// the one before it, in its first `repeated` lanes.
struct MeanTile {
  int64_t first, part;
  int last, repeated;
};
template <typename F>
GOSSAMER_INLINE void each_mean_tile(int64_t width, const F& f) {
  for (int64_t c = 0; c < width; c += kMeanColumns) {
    const int columns = int(min_of(kMeanColumns, width - c)), vectors = int(ceil_div(columns, kLanes));
    const MeanTile tile = columns < kLanes ? MeanTile{c, columns, 0, 0}
                                           : MeanTile{c, kLanes, columns - kLanes, vectors * kLanes - columns};
    by_vectors<kMeanColumns / kLanes>(vectors, [&](auto tag) { f(tag, tile); });
  }
}

template <int V>
GOSSAMER_INLINE void head_mean_tile(const Csr& m, const float* value, const float* x, const float* bias, int64_t i,
                                    MeanTile tile, float* out, int64_t width, int64_t heads) {
  const auto column = [tile](int v) { return tile.first + (v + 1 < V ? v * kLanes : tile.last); };
  const int64_t nnz = m.rowptr[m.num_dst], cols = heads * width;
  f32x16 sum[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) sum[v] = splat(0.0f);
  for (int64_t e = m.rowptr[i]; e < m.rowptr[i + 1]; ++e) {
    if (tile.first == 0 && e + kPrefetchEdges < nnz)
      prefetch_bytes(x + int64_t(m.col[e + kPrefetchEdges]) * cols, cols * int64_t(sizeof(float)));
    for (int64_t h = 0; h < heads; ++h) {
      const float weight = value[e * heads + h];
      const float* row = x + int64_t(m.col[e]) * cols + h * width;
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[v] += load_part(row + column(v), tile.part) * weight;
    }
  }
  const float share = 1.0f / float(heads);
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    const f32x16 mean = sum[v] * share;
    const f32x16 shifted = bias ? mean + load_part(bias + column(v), tile.part) : mean;
    put_part(out + i * width + column(v), shifted, tile.part, false);
  }
}

static void head_mean(Csr m, const float* value, const float* x, const float* bias, float* out, int64_t width,
                      int64_t heads, int threads) {
  parallel_rows(m.rowptr, m.num_dst, heads * width, threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      each_mean_tile(width, [&](auto tag, MeanTile tile) {
        head_mean_tile<decltype(tag)::value>(m, value, x, bias, i, tile, out, width, heads);
      });
  });
}

// Edges begin .. end - 1 out of source j:  dx[j, h] += value[e, h] g_i / H,  dvalue[e, h] = <g_i, x[j, h]> / H.
template <int V>
GOSSAMER_INLINE void head_mean_back(const MeanBackward& b, int64_t j, int64_t h, MeanTile tile, int64_t begin,
                                    int64_t end) {
  const auto column = [tile](int v) { return tile.first + (v + 1 < V ? v * kLanes : tile.last); };
  const int64_t own = (j * b.heads + h) * b.width;
  const float share = 1.0f / float(b.heads);
  const bool starts = begin == b.t.rowptr[j];
  const i32x16 counted = bits_of<i32x16>(lane_numbers()) >= splat(int32_t(tile.repeated));
  f32x16 x[V], dx[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    x[v] = b.dvalue ? load_part(b.x + own + column(v), tile.part) : splat(0.0f);
    dx[v] = b.dx && !starts ? load_part(b.dx + own + column(v), tile.part) : splat(0.0f);
  }
  for (int64_t k = begin; k < end; ++k) {
    const float* g = b.dout + int64_t(b.t.col[k]) * b.width;
    const int64_t at = b.perm[k] * b.heads + h;
    const float weight = b.value[at] * share;
    f32x16 dot = splat(0.0f);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const f32x16 part = load_part(g + column(v), tile.part), product = part * x[v];
      dx[v] += part * weight;
      dot += v + 1 < V ? product : select(counted, product, splat(0.0f));
    }
    if (b.dvalue) b.dvalue[at] = (tile.first ? b.dvalue[at] : 0.0f) + sum_lanes(dot) * share;
  }
  if (!b.dx) return;
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) put_part(b.dx + own + column(v), dx[v], tile.part, false);
}

// Asks for what edges begin .. end - 1 read and write.
GOSSAMER_INLINE void prefetch_mean_edges(const MeanBackward& b, int64_t begin, int64_t end) {
  for (int64_t k = begin; k < min_of(end, b.t.rowptr[b.t.num_dst]); ++k) {
    prefetch_bytes(b.dout + int64_t(b.t.col[k]) * b.width, b.width * int64_t(sizeof(float)));
    __builtin_prefetch(b.value + b.perm[k] * b.heads, 0, 3);
    if (b.dvalue) __builtin_prefetch(b.dvalue + b.perm[k] * b.heads, 1, 3);
  }
}

static void head_mean_backward(MeanBackward b, int threads) {
  const int64_t cols = b.heads * b.width;
  parallel_rows(b.t.rowptr, b.t.num_dst, 2 * cols, threads, [&](int64_t first, int64_t last) {
    for (int64_t j = first; j < last; ++j) {
      const int64_t begin = b.t.rowptr[j], end = b.t.rowptr[j + 1];
      if (b.dx && begin == end) std::memset(b.dx + j * cols, 0, size_t(cols) * sizeof(float));
      for (int64_t k = begin; k < end; k += kMeanEdges) {
        const int64_t count = min_of(end - k, kMeanEdges), ahead = k + kPrefetchEdges;
        for (int64_t h = 0; h < b.heads; ++h) {
          prefetch_mean_edges(b, ahead + count * h / b.heads, ahead + count * (h + 1) / b.heads);  // few at a time
          each_mean_tile(b.width, [&](auto tag, MeanTile tile) {
            head_mean_back<decltype(tag)::value>(b, j, h, tile, k, k + count);
          });
        }
      }
    }
  });
}
