// Attention over the edges of each row, without ever holding an edge-sized tensor wider than the number of heads.
// Lanes belong to heads as in edge_softmax-inl.h, where the number of heads allows it.

// Rows of x [.., H] at index[0] .. index[count / H - 1], one after the other; those at index[ahead ..], up to `end`,
// are prefetched. Lanes after `count` repeat the last row.
template <int H, typename Index>
GOSSAMER_INLINE f32x16 gather_edges(const float* x, const Index* index, const Index* end, int64_t count) {
  constexpr int rows = kLanes / H;
  constexpr int64_t ahead = 32;
  if (end - index >= ahead + rows)
    for (int k = 0; k < rows; ++k) __builtin_prefetch(x + int64_t(index[ahead + k]) * H, 0, 3);
  if (count >= kLanes) return gather_heads<H>(x, [index](int k) { return int64_t(index[k]); });
  const int64_t last = count / H - 1;
  return gather_heads<H>(x, [index, last](int k) { return int64_t(index[min_of<int64_t>(k, last)]); });
}

// a_src_j + a_dst_i + a_edge_e of edges e, e + 1 ..; `dst` holds a_dst_i in the lanes of each edge.
template <int H>
GOSSAMER_INLINE f32x16 gat_sums(const Csr& m, const GatTerms& a, f32x16 dst, int64_t e, int64_t count) {
  f32x16 s = gather_edges<H>(a.src, m.col + e, m.col + m.rowptr[m.num_dst], count);
  if (a.dst) s += dst;
  return a.edge ? s + load_part(a.edge + e * H, count) : s;
}
template <int H>
GOSSAMER_INLINE f32x16 dst_lanes(const GatTerms& a, int64_t i) {
  return a.dst ? gather_heads<H>(a.dst, [i](int) { return i; }) : splat(0.0f);
}
// The same for any number of heads.
GOSSAMER_INLINE float gat_sum(const GatTerms& a, int64_t e, int64_t i, int64_t j, int64_t heads, int64_t h) {
  float s = a.src[j * heads + h];
  if (a.dst) s += a.dst[i * heads + h];
  if (a.edge) s += a.edge[e * heads + h];
  return s;
}

static void gat_row_of(int64_t heads, const Csr& m, const GatTerms& a, float slope, int64_t i, float* row,
                       float* log_sums = nullptr) {
  const int64_t begin = m.rowptr[i], end = m.rowptr[i + 1];
  for (int64_t e = begin; e < end; ++e)
    for (int64_t h = 0; h < heads; ++h) {
      const float s = gat_sum(a, e, i, m.col[e], heads, h);
      row[(e - begin) * heads + h] = s > 0 ? s : s * slope;
    }
  softmax_row_of(heads, (end - begin) * heads, row, log_sums);
}

static void gat_attention(Csr m, GatTerms a, float slope, float* out, int64_t heads, int threads) {
  by_heads(heads, [&](auto tag) {
    constexpr int H = decltype(tag)::value;
    parallel_rows(m.rowptr, m.num_dst, heads * 8, threads, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        if constexpr (H > 0) {
          const int64_t begin = m.rowptr[i];
          const f32x16 dst = dst_lanes<H>(a, i);
          softmax_row<H>((m.rowptr[i + 1] - begin) * H, out + begin * H, [&](int64_t k, int64_t count) {
            return activate<kLeakyRelu>(gat_sums<H>(m, a, dst, begin + k / H, count), slope);
          });
        } else {
          gat_row_of(heads, m, a, slope, i, out + m.rowptr[i] * heads);
        }
      }
    });
  });
}

// ds = p * (dp - sum over the row of p * dp) * leaky'(s), and its sum over each row, the gradient of a_dst.
template <int H>
GOSSAMER_INLINE void gat_row_backward(const Csr& m, const GatTerms& a, float slope, int64_t i, const float* p,
                                      const float* dp, float* ds, float* da_dst) {
  const int64_t begin = m.rowptr[i], at = begin * H;
  const f32x16 dst = dst_lanes<H>(a, i);
  f32x16 total = splat(0.0f);
  const auto scaled = [&](int64_t k, int64_t count, f32x16 dlogits) {
    const f32x16 s = gat_sums<H>(m, a, dst, begin + k / H, count);
    const f32x16 d = select(s > splat(0.0f), dlogits, dlogits * slope);
    total += keep_part(d, count, 0.0f);
    return d;
  };
  softmax_row_backward<H>((m.rowptr[i + 1] - begin) * H, p + at, dp + at, ds + at, scaled);
  put_part(da_dst + i * H, sum_by_head<H>(total), H, false);
}
static void gat_row_backward_of(int64_t heads, const Csr& m, const GatTerms& a, float slope, int64_t i, const float* p,
                                const float* dp, float* ds, float* da_dst) {
  const int64_t begin = m.rowptr[i], end = m.rowptr[i + 1], at = begin * heads;
  softmax_row_backward_of(heads, (end - begin) * heads, p + at, dp + at, ds + at);
  for (int64_t h = 0; h < heads; ++h) {
    float total = 0;
    for (int64_t e = begin; e < end; ++e) {
      float* d = ds + e * heads + h;
      if (!(gat_sum(a, e, i, m.col[e], heads, h) > 0)) *d *= slope;
      total += *d;
    }
    da_dst[i * heads + h] = total;
  }
}

static void gat_attention_backward(Csr m, GatTerms a, float slope, const float* p, const float* dp, float* ds,
                                   float* da_dst, int64_t heads, int threads) {
  by_heads(heads, [&](auto tag) {
    constexpr int H = decltype(tag)::value;
    parallel_rows(m.rowptr, m.num_dst, heads * 8, threads, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        if constexpr (H > 0) gat_row_backward<H>(m, a, slope, i, p, dp, ds, da_dst);
        else gat_row_backward_of(heads, m, a, slope, i, p, dp, ds, da_dst);
      }
    });
  });
}

// out[r, h] = sum over the edges e of row r of values[perm[e], h].
template <int H>
GOSSAMER_INLINE void edge_sums_row(const Csr& m, const int64_t* perm, const float* values, int64_t r, float* out) {
  const int64_t end = m.rowptr[r + 1];
  const int64_t* every = perm ? perm + m.rowptr[m.num_dst] : nullptr;
  f32x16 sum = splat(0.0f);
  for (int64_t e = m.rowptr[r]; e < end; e += kLanes / H) {
    const int64_t count = (end - e) * H;
    sum += perm ? keep_part(gather_edges<H>(values, perm + e, every, count), count, 0.0f)
                : load_part(values + e * H, count);
  }
  put_part(out + r * H, sum_by_head<H>(sum), H, false);
}
static void edge_sums_row_of(int64_t heads, const Csr& m, const int64_t* perm, const float* values, int64_t r,
                             float* out) {
  for (int64_t h = 0; h < heads; ++h) out[r * heads + h] = 0;
  for (int64_t e = m.rowptr[r]; e < m.rowptr[r + 1]; ++e) {
    const float* v = values + (perm ? perm[e] : e) * heads;
    for (int64_t h = 0; h < heads; ++h) out[r * heads + h] += v[h];
  }
}

static void edge_sums(Csr m, const int64_t* perm, const float* values, float* out, int64_t heads, int threads) {
  by_heads(heads, [&](auto tag) {
    constexpr int H = decltype(tag)::value;
    parallel_rows(m.rowptr, m.num_dst, heads * 4, threads, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        if constexpr (H > 0) edge_sums_row<H>(m, perm, values, r, out);
        else edge_sums_row_of(heads, m, perm, values, r, out);
      }
    });
  });
}

// GATv2: logits[e, h] = <att_h, leaky(x_src_j + x_dst_i)> over the columns of head h.
static void gatv2_logits(Csr m, const float* x_src, const float* x_dst, const float* att, float slope, float* out,
                         int64_t cols, int64_t heads, int threads) {
  const int64_t width = cols / heads, nnz = m.rowptr[m.num_dst];
  parallel_rows(m.rowptr, m.num_dst, cols, threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      for (int64_t e = m.rowptr[i]; e < m.rowptr[i + 1]; ++e) {
        if (e + kPrefetchEdges < nnz)
          prefetch_bytes(x_src + int64_t(m.col[e + kPrefetchEdges]) * cols, cols * int64_t(sizeof(float)));
        const float *src = x_src + int64_t(m.col[e]) * cols, *dst = x_dst + i * cols;
        for (int64_t h = 0; h < heads; ++h)
          out[e * heads + h] = row_sum(width, [&](int64_t c, int64_t count) {
            const int64_t at = h * width + c;
            const f32x16 s = load_part(src + at, count) + load_part(dst + at, count);
            return activate<kLeakyRelu>(s, slope) * load_part(att + at, count);
          });
      }
  });
}

// Adds dlogit * att * leaky'(s) to a row's gradient, and dlogit * leaky(s) to that of att if it is wanted.
GOSSAMER_INLINE void gatv2_add(const float* a, const float* b, const float* att, float slope, const float* dlogits,
                               int64_t cols, int64_t heads, float* drow, float* datt) {
  const int64_t width = cols / heads;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t c = h * width; c < (h + 1) * width; c += kLanes) {
      const int64_t count = (h + 1) * width - c;
      const f32x16 s = load_part(a + c, count) + load_part(b + c, count), weight = load_part(att + c, count);
      const f32x16 d = derivative<kLeakyRelu>(s, slope) * weight * dlogits[h];
      put_part(drow + c, load_part(drow + c, count) + d, count, false);
      if (datt)
        put_part(datt + c, load_part(datt + c, count) + activate<kLeakyRelu>(s, slope) * dlogits[h], count, false);
    }
}

// Gradient of the rows: of x_dst with the graph itself and perm null, of x_src with the transposed graph and its perm.
// With `partial` (padded(cols) floats for each chunk of rows) also that of att.
static void gatv2_backward(Csr m, const int64_t* perm, const float* own, const float* other, const float* att,
                           float slope, const float* dlogits, float* partial, float* dx, float* datt, int64_t cols,
                           int64_t heads, int threads) {
  const int64_t chunks = ceil_div(m.num_dst, kChunkRows), stride = padded(cols), nnz = m.rowptr[m.num_dst];
  parallel_for(chunks, 1, threads, [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      float* sums = partial ? partial + chunk * 2 * stride : nullptr;
      if (sums) std::memset(sums, 0, size_t(2 * stride) * sizeof(float));
      for (int64_t i = chunk * kChunkRows; i < min_of(m.num_dst, (chunk + 1) * kChunkRows); ++i) {
        std::memset(dx + i * cols, 0, size_t(cols) * sizeof(float));
        for (int64_t e = m.rowptr[i]; e < m.rowptr[i + 1]; ++e) {
          if (e + kPrefetchEdges < nnz)
            prefetch_bytes(other + int64_t(m.col[e + kPrefetchEdges]) * cols, cols * int64_t(sizeof(float)));
          gatv2_add(own + i * cols, other + int64_t(m.col[e]) * cols, att, slope,
                    dlogits + (perm ? perm[e] : e) * heads, cols, heads, dx + i * cols, sums);
        }
      }
    }
  });
  if (partial) merge_sums(partial, m.num_dst, cols, datt, nullptr);
}
