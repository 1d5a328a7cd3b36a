// Attention over the edges of each row, without ever holding an edge-sized tensor wider than the number of heads.

// Logits of row i, written over its weights: leaky(a_src_j + a_dst_i + a_edge_e) per head.
GOSSAMER_INLINE float gat_sum(const GatTerms& a, int64_t e, int64_t i, int64_t j, int64_t heads, int64_t h) {
  float s = a.src[j * heads + h];
  if (a.dst) s += a.dst[i * heads + h];
  if (a.edge) s += a.edge[e * heads + h];
  return s;
}

static void gat_attention(Csr m, GatTerms a, float slope, float* out, int64_t heads, int threads) {
  parallel_rows(m.rowptr, m.num_dst, heads * 4, threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      for (int64_t e = m.rowptr[i]; e < m.rowptr[i + 1]; ++e)
        for (int64_t h = 0; h < heads; ++h) {
          const float s = gat_sum(a, e, i, m.col[e], heads, h);
          out[e * heads + h] = s > 0 ? s : s * slope;
        }
  });
  edge_softmax(m, out, out, heads, threads);
}

// ds = p * (dp - sum over the row of p * dp) * leaky'(s), and its sum over each row, the gradient of a_dst.
static void gat_attention_backward(Csr m, GatTerms a, float slope, const float* p, const float* dp, float* ds,
                                   float* da_dst, int64_t heads, int threads) {
  edge_softmax_backward(m, p, dp, ds, heads, threads);
  parallel_rows(m.rowptr, m.num_dst, heads * 4, threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      for (int64_t h = 0; h < heads; ++h) da_dst[i * heads + h] = 0;
      for (int64_t e = m.rowptr[i]; e < m.rowptr[i + 1]; ++e)
        for (int64_t h = 0; h < heads; ++h) {
          if (!(gat_sum(a, e, i, m.col[e], heads, h) > 0)) ds[e * heads + h] *= slope;
          da_dst[i * heads + h] += ds[e * heads + h];
        }
    }
  });
}

// out[r, h] = sum over the edges e of row r of values[perm[e], h].
static void edge_sums(Csr m, const int64_t* perm, const float* values, float* out, int64_t heads, int threads) {
  parallel_rows(m.rowptr, m.num_dst, heads * 4, threads, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      for (int64_t h = 0; h < heads; ++h) out[r * heads + h] = 0;
      for (int64_t e = m.rowptr[r]; e < m.rowptr[r + 1]; ++e) {
        const float* v = values + (perm ? perm[e] : e) * heads;
        for (int64_t h = 0; h < heads; ++h) out[r * heads + h] += v[h];
      }
    }
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

// Adds dlogit * att * leaky'(s) to a row's gradient, and dlogit * leaky(s) to that of att if it is asked for.
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
