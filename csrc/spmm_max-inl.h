GOSSAMER_INLINE void store_winners(uint8_t* to, i32x16 at) { narrow_bytes(to, at); }
GOSSAMER_INLINE void store_winners(int16_t* to, i32x16 at) { narrow(reinterpret_cast<uint16_t*>(to), at); }
GOSSAMER_INLINE void store_winners(int32_t* to, i32x16 at) { store(to, at); }

// Maximum over neighbours. `winner` is the position, inside its row's list, of the edge that gave each maximum: the
// first one among equals; NaN wins over any number. Rows without edges are zero.
template <typename Winner>
static void spmm_max_row(const Csr& a, const EdgeWeight& w, int64_t i, const float* x, float* out, Winner* winner,
                         int64_t cols) {
  const int64_t begin = a.rowptr[i], end = a.rowptr[i + 1], nnz = a.rowptr[a.num_dst];
  float* best = out + i * cols;
  Winner* where = winner + i * cols;
  int64_t c = 0;
  for (; c + 2 * kLanes <= cols; c += 2 * kLanes) {
    f32x16 top0 = splat(-__builtin_inff()), top1 = top0;
    i32x16 at0 = splat(0), at1 = at0;
    for (int64_t e = begin; e < end; ++e) {
      if (e + kPrefetchEdges < nnz) prefetch_bytes(x + int64_t(a.col[e + kPrefetchEdges]) * cols + c, 128);
      const float* xj = x + int64_t(a.col[e]) * cols + c;
      const float weight = edge_weight(w, e, 0, a.col[e]);
      const f32x16 v0 = load<f32x16>(xj) * weight, v1 = load<f32x16>(xj + kLanes) * weight;
      const i32x16 wins0 = (v0 > top0) | (v0 != v0), wins1 = (v1 > top1) | (v1 != v1);
      const i32x16 position = splat(int32_t(e - begin));
      top0 = select(wins0, v0, top0);
      top1 = select(wins1, v1, top1);
      at0 = select(wins0, position, at0);
      at1 = select(wins1, position, at1);
    }
    if (begin == end) top0 = top1 = splat(0.0f);
    store(best + c, top0);
    store(best + c + kLanes, top1);
    store_winners(where + c, at0);
    store_winners(where + c + kLanes, at1);
  }
  for (; c < cols; ++c) {
    float top = -__builtin_inff();
    int64_t at = 0;
    for (int64_t e = begin; e < end; ++e) {
      const float v = x[int64_t(a.col[e]) * cols + c] * edge_weight(w, e, 0, a.col[e]);
      if (v > top || v != v) top = v, at = e - begin;
    }
    best[c] = begin == end ? 0.0f : top;
    where[c] = Winner(at);
  }
}

// dx of the winners. A thread owns a range of columns, so no two ever write the same element. False if some winner is
// no position of its row: such a one is left out.
template <typename Winner>
static bool spmm_max_scatter(const Csr& a, const EdgeWeight& w, const float* dout, const Winner* winner, float* dx,
                             int64_t cols, int threads) {
  bool valid = true;
  parallel_for(cols, kLanes, threads, [&](int64_t first, int64_t last) {
    for (int64_t i = 0; i < a.num_dst; ++i) {
      const int64_t begin = a.rowptr[i], degree = a.rowptr[i + 1] - begin;
      if (degree == 0) continue;
      for (int64_t c = first; c < last; ++c) {
        const int64_t position = winner[i * cols + c];
        if (position < 0 || position >= degree) {
          __atomic_store_n(&valid, false, __ATOMIC_RELAXED);
          continue;
        }
        const int32_t j = a.col[begin + position];
        dx[int64_t(j) * cols + c] += edge_weight(w, begin + position, 0, j) * dout[i * cols + c];
      }
    }
  });
  return valid;
}

static void spmm_max(Csr a, EdgeWeight w, const float* x, float* out, void* winner, int winner_bytes, int64_t cols,
                     int threads) {
  parallel_rows(a.rowptr, a.num_dst, cols, threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      if (winner_bytes == 1) spmm_max_row(a, w, i, x, out, static_cast<uint8_t*>(winner), cols);
      else if (winner_bytes == 2) spmm_max_row(a, w, i, x, out, static_cast<int16_t*>(winner), cols);
      else spmm_max_row(a, w, i, x, out, static_cast<int32_t*>(winner), cols);
    }
  });
}

static bool spmm_max_backward(Csr a, EdgeWeight w, const float* dout, const void* winner, int winner_bytes, float* dx,
                              int64_t cols, int threads) {
  if (winner_bytes == 1) return spmm_max_scatter(a, w, dout, static_cast<const uint8_t*>(winner), dx, cols, threads);
  if (winner_bytes == 2) return spmm_max_scatter(a, w, dout, static_cast<const int16_t*>(winner), dx, cols, threads);
  return spmm_max_scatter(a, w, dout, static_cast<const int32_t*>(winner), dx, cols, threads);
}
