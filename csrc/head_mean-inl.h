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
// One of V vectors: only a lone one may be part of one.
template <int V>
GOSSAMER_INLINE f32x16 load_mean(const float* from, const MeanTile& tile) {
  return V > 1 ? load<f32x16>(from) : load_part(from, tile.part);
}
template <int V>
GOSSAMER_INLINE void put_mean(float* to, f32x16 v, const MeanTile& tile) {
  if (V > 1) store(to, v);
  else put_part(to, v, tile.part, false);
}
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
      for (int v = 0; v < V; ++v) sum[v] += load_mean<V>(row + column(v), tile) * weight;
    }
  }
  const float share = 1.0f / float(heads);
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    const f32x16 mean = sum[v] * share;
    const f32x16 shifted = bias ? mean + load_mean<V>(bias + column(v), tile) : mean;
    put_mean<V>(out + i * width + column(v), shifted, tile);
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

// Prefetches what an edge reads and writes.
GOSSAMER_INLINE void prefetch_mean_edge(const MeanBackward& b, int64_t e) {
  if (e >= b.t.rowptr[b.t.num_dst]) return;
  if (b.dvalue) __builtin_prefetch(b.dvalue + b.perm[e] * b.heads, 1, 3);
  if (b.keep && !b.keep[b.t.col[e]]) return;
  prefetch_bytes(b.dout + int64_t(b.t.col[e]) * b.width, b.width * int64_t(sizeof(float)));
  __builtin_prefetch(b.value + b.perm[e] * b.heads, 0, 3);
}

// Heads whose rows and sums fit in registers beside V vectors of a gradient.
constexpr int mean_heads(int vectors) { return kParts > 1 || vectors > 4 ? 1 : vectors > 3 ? 2 : 4; }

// Edges begin .. end - 1 out of source j, heads h .. h + H - 1:
// dx[j, h] += value[e, h] g_i / heads,  dvalue[e, h] = <g_i, x[j, h]> / heads.
template <int V, int H>
GOSSAMER_INLINE void head_mean_back(const MeanBackward& b, int64_t j, int64_t h, MeanTile tile, int64_t begin,
                                    int64_t end) {
  const auto column = [tile](int v) { return tile.first + (v + 1 < V ? v * kLanes : tile.last); };
  const auto own = [&](int k) { return (j * b.heads + h + k) * b.width; };
  const float share = 1.0f / float(b.heads);
  const bool starts = begin == b.t.rowptr[j];
  const i32x16 counted = bits_of<i32x16>(lane_numbers()) >= splat(int32_t(tile.repeated));
  f32x16 x[H][V], dx[H][V];
#pragma GCC unroll 4
  for (int k = 0; k < H; ++k)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      x[k][v] = b.dvalue ? load_mean<V>(b.x + own(k) + column(v), tile) : splat(0.0f);
      dx[k][v] = b.dx && !starts ? load_mean<V>(b.dx + own(k) + column(v), tile) : splat(0.0f);
    }
  for (int64_t e = begin; e < end; ++e) {
    if (h == 0 && tile.first == 0) prefetch_mean_edge(b, e + kPrefetchEdges);
    const float* g = b.dout + int64_t(b.t.col[e]) * b.width;
    const int64_t at = b.perm[e] * b.heads + h;
    if (b.keep && !b.keep[b.t.col[e]]) {  // both products are zero
      for (int k = 0; k < H && b.dvalue; ++k) b.dvalue[at + k] = 0.0f;
      continue;
    }
    f32x16 part[V], dot[H];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) part[v] = load_mean<V>(g + column(v), tile);
#pragma GCC unroll 4
    for (int k = 0; k < H; ++k) {
      const float weight = b.value[at + k] * share;
      dot[k] = splat(0.0f);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        const f32x16 product = part[v] * x[k][v];
        dx[k][v] += part[v] * weight;
        dot[k] += v + 1 < V ? product : select(counted, product, splat(0.0f));
      }
    }
    if (!b.dvalue) continue;
    float sums[H];
    sum_lanes_each<H>(dot, sums);
    for (int k = 0; k < H; ++k) b.dvalue[at + k] = (tile.first ? b.dvalue[at + k] : 0.0f) + sums[k] * share;
  }
  if (!b.dx) return;
#pragma GCC unroll 4
  for (int k = 0; k < H; ++k)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) put_mean<V>(b.dx + own(k) + column(v), dx[k][v], tile);
}

static void head_mean_backward(MeanBackward b, int threads) {
  const int64_t cols = b.heads * b.width;
  parallel_rows(b.t.rowptr, b.t.num_dst, 2 * cols, threads, [&](int64_t first, int64_t last) {
    for (int64_t j = first; j < last; ++j) {
      const int64_t begin = b.t.rowptr[j], end = b.t.rowptr[j + 1];
      if (b.dx && begin == end) std::memset(b.dx + j * cols, 0, size_t(cols) * sizeof(float));
      for (int64_t k = begin; k < end; k += kMeanEdges) {
        const int64_t count = min_of(end - k, kMeanEdges);
        each_mean_tile(b.width, [&](auto tag, MeanTile tile) {
          constexpr int V = decltype(tag)::value, H = mean_heads(V);
          int64_t h = 0;
          for (; h + H <= b.heads; h += H) head_mean_back<V, H>(b, j, h, tile, k, k + count);
          for (; h < b.heads; ++h) head_mean_back<V, 1>(b, j, h, tile, k, k + count);
        });
      }
    }
  });
}
