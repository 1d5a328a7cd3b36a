// The backward of GAT's attention and weighted sum on int8 rows, in two passes over the edges (ops/gat_int8.py): by
// destination, where softmax needs the whole row, and by source, where gradients of rows are summed.

// Values per edge and head are handled as flat vectors. Lane l of a row belongs to head l % heads, and so it does again
// after `period` values, a whole number of vectors and of edges.
struct HeadLanes {
  int64_t heads, period;
  explicit HeadLanes(int64_t heads) : heads(heads), period(heads) {
    while (period % kLanes) period += heads;
  }
  // Each lane becomes the sum of its head's lanes, taken in order.
  void fold(float* lanes) const {
    for (int64_t h = 0; h < heads; ++h) {
      float sum = 0;
      for (int64_t l = h; l < period; l += heads) sum += lanes[l];
      lanes[h] = sum;
    }
    spread(lanes);
  }
  // The first lanes, one per head, to all others.
  void spread(float* lanes) const {
    for (int64_t l = heads; l < period; ++l) lanes[l] = lanes[l - heads];
  }
};

GOSSAMER_INLINE void copy_heads(float* to, const float* from, int64_t heads) {
  switch (heads) {
    case 1:
      std::memcpy(to, from, 4);
      break;
    case 2:
      std::memcpy(to, from, 8);
      break;
    case 4:
      std::memcpy(to, from, 16);
      break;
    case 8:
      std::memcpy(to, from, 32);
      break;
    default:
      std::memcpy(to, from, size_t(heads) * 4);
  }
}

// The dot product of each head's columns, times scale.
GOSSAMER_INLINE void head_dots(const int8_t* a, const int8_t* b, int64_t heads, int64_t width, float scale,
                               float* out) {
  int64_t h = 0;
#if defined(__AVX512BW__)
  if (width % 32 == 0)
    for (; h + 4 <= heads; h += 4) {
      __m512i sums[4];
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const int8_t *ak = a + (h + k) * width, *bk = b + (h + k) * width;
        sums[k] = _mm512_setzero_si512();
        for (int64_t c = 0; c < width; c += 32)
          sums[k] = _mm512_add_epi32(
              sums[k], _mm512_madd_epi16(_mm512_cvtepi8_epi16(load256(ak + c)), _mm512_cvtepi8_epi16(load256(bk + c))));
      }
      const auto halves = [](__m512i x, __m512i y) {
        return _mm512_add_epi32(_mm512_unpacklo_epi32(x, y), _mm512_unpackhi_epi32(x, y));
      };
      const __m512i low = halves(sums[0], sums[1]), high = halves(sums[2], sums[3]);
      const __m512i each = _mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
      const __m256i two = _mm256_add_epi32(_mm512_castsi512_si256(each), _mm512_extracti64x4_epi64(each, 1));
      const __m128i one = _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
      _mm_storeu_ps(out + h, _mm_mul_ps(_mm_cvtepi32_ps(one), _mm_set1_ps(scale)));
    }
#endif
  for (; h < heads; ++h) out[h] = float(dot(a + h * width, b + h * width, width)) * scale;
}

static int64_t longest_row(const int64_t* rowptr, int64_t first, int64_t last) {
  int64_t most = 0;
  for (int64_t i = first; i < last; ++i) most = max_of(most, rowptr[i + 1] - rowptr[i]);
  return most;
}

// Scratch of one destination: per edge and head dp (later ds), the logit before leaky, and w, the weight after dropout;
// per lane the sum of ds, the mean of dp under p, and a_dst. The lanes of a last vector beyond the row are zero.
struct GatScratch {
  float *dp, *logits, *w, *sums, *mean, *dst;
};

// From p, dp and logits to w, ds and the sums of ds; edge: a_edge of the row's first, or null.
GOSSAMER_INLINE void gat_row_backward(const GatScratch& s, const float* p, const float* edge, float slope, int64_t n,
                                      uint64_t index, const DropRule* rule, const HeadLanes& lanes) {
  const auto next = [&](int64_t l) { return l + kLanes < lanes.period ? l + kLanes : 0; };
  std::memset(s.sums, 0, size_t(lanes.period) * sizeof(float));
  std::memset(s.mean, 0, size_t(lanes.period) * sizeof(float));
  for (int64_t c = 0, l = 0; c < n; c += kLanes, l = next(l)) {
    const f32x16 weight = load_part(p + c, n - c);
    f32x16 d = load<f32x16>(s.dp + c), dropped = weight;
    if (rule) {
      i32x16 kept;
      d = drop16<false>(d, *rule, index + uint64_t(c), &kept);
      dropped = select(kept, weight * rule->scale, splat(0.0f));
      store(s.dp + c, d);
    }
    store(s.w + c, dropped);
    store(s.mean + l, load<f32x16>(s.mean + l) + weight * d);
  }
  lanes.fold(s.mean);
  for (int64_t c = 0, l = 0; c < n; c += kLanes, l = next(l)) {
    f32x16 logit = load<f32x16>(s.logits + c) + load<f32x16>(s.dst + l);
    if (edge) logit = logit + load_part(edge + c, n - c);
    const f32x16 centred = load_part(p + c, n - c) * (load<f32x16>(s.dp + c) - load<f32x16>(s.mean + l));
    const f32x16 ds = centred * derivative<kLeakyRelu>(logit, slope);
    store(s.dp + c, ds);
    store(s.sums + l, load<f32x16>(s.sums + l) + ds);
  }
  lanes.fold(s.sums);
}

// pairs[e] = (w_e, ds_e), heads of each; da_dst: the sums of ds by destination.
static bool gat_backward_int8(Csr m, GatTerms a, float slope, const float* p, double drop, uint64_t seed, Int8Rows g,
                              Int8Rows h, float* pairs, float* da_dst, int64_t cols, int64_t heads, int threads) {
  const int64_t width = cols / heads, nnz = m.rowptr[m.num_dst];
  const HeadLanes lanes(heads);
  const DropRule dropping = drop_rule(drop, seed);
  bool enough = true;
  parallel_rows(m.rowptr, m.num_dst, cols, threads, [&](int64_t first, int64_t last) {
    const int64_t room = padded(longest_row(m.rowptr, first, last) * heads) + kLanes;
    Buffer<float> scratch(3 * room + 3 * lanes.period);
    if (!scratch.data) {
      __atomic_store_n(&enough, false, __ATOMIC_RELAXED);
      return;
    }
    float *rows = scratch.data, *by_lane = rows + 3 * room;
    const GatScratch s = {
        rows, rows + room, rows + 2 * room, by_lane, by_lane + lanes.period, by_lane + 2 * lanes.period};
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = m.rowptr[i], end = m.rowptr[i + 1], n = (end - begin) * heads;
      for (int64_t e = begin; e < end; ++e) {
        if (e + kPrefetchEdges < nnz) {
          const int64_t ahead = m.col[e + kPrefetchEdges];
          prefetch_bytes(h.codes + ahead * cols, cols);
          __builtin_prefetch(a.src + ahead * heads);
          __builtin_prefetch(h.scale + ahead);
        }
        const int64_t j = m.col[e], at = (e - begin) * heads;
        head_dots(g.codes + i * cols, h.codes + j * cols, heads, width, g.scale[i] * h.scale[j], s.dp + at);
        copy_heads(s.logits + at, a.src + j * heads, heads);
      }
      std::memset(s.dp + n, 0, kLanes * sizeof(float));
      if (a.dst) copy_heads(s.dst, a.dst + i * heads, heads);
      lanes.spread(s.dst);
      gat_row_backward(s, p + begin * heads, a.edge ? a.edge + begin * heads : nullptr, slope, n,
                       uint64_t(begin * heads), drop > 0 ? &dropping : nullptr, lanes);
      for (int64_t e = begin; e < end; ++e) {
        copy_heads(pairs + e * 2 * heads, s.w + (e - begin) * heads, heads);
        copy_heads(pairs + (e * 2 + 1) * heads, s.dp + (e - begin) * heads, heads);
      }
      copy_heads(da_dst + i * heads, s.sums, heads);
    }
  });
  return enough;
}

// row += da att, head by head.
GOSSAMER_INLINE void add_terms(float* row, const float* da, const float* att, int64_t heads, int64_t width) {
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t c = h * width; c < (h + 1) * width; ++c) row[c] += da[h] * att[c];
}

// By source: da_src, the sums of ds; rows of the sum of w_e g_i + da_src att_src (+ da_dst att_dst, where the sources
// are the destinations), to `out` or as codes.
static bool gat_sources_int8(Csr t, const int64_t* perm, const float* pairs, Int8Rows g, GatSources terms, float* out,
                             RowCodes to, int64_t cols, int64_t heads, int threads) {
  const int64_t width = cols / heads, nnz = t.rowptr[t.num_dst];
  const RowWriter writer(to, cols);
  bool enough = true;
  parallel_rows(t.rowptr, t.num_dst, cols, threads, [&](int64_t first, int64_t last) {
    Buffer<float> weights(longest_row(t.rowptr, first, last) * heads), scratch(cols);
    if (!weights.data || !scratch.data) {
      __atomic_store_n(&enough, false, __ATOMIC_RELAXED);
      return;
    }
    const EdgeWeight by_edge = {weights.data, nullptr, nullptr, heads};
    for (int64_t j = first; j < last; ++j) {
      const int64_t begin = t.rowptr[j], count = t.rowptr[j + 1] - begin;
      float *da = terms.da_src + j * heads, *row = out ? out + j * cols : scratch.data;
      for (int64_t h = 0; h < heads; ++h) da[h] = 0;
      for (int64_t k = 0; k < count; ++k) {
        const int64_t ahead = begin + k + kPrefetchEdges;
        if (ahead < nnz) {
          prefetch_bytes(pairs + perm[ahead] * 2 * heads, 2 * heads * int64_t(sizeof(float)));
          __builtin_prefetch(g.scale + t.col[ahead]);
        }
        const float *pair = pairs + perm[begin + k] * 2 * heads, scale = g.scale[t.col[begin + k]];
        for (int64_t h = 0; h < heads; ++h) {
          weights.data[k * heads + h] = pair[h] * scale;
          da[h] += pair[heads + h];
        }
      }
      const Csr here = {nullptr, t.col + begin, 0};
      const RowEdges edges = {0, count, nnz - begin, false, 1.0f};
      const auto nothing = [](int64_t) { return RowAdd<int8_t>{nullptr, nullptr, 0, nullptr}; };
      for (int64_t h = 0; h < heads; ++h)
        spmm_columns(here, by_edge, edges, nothing, h, g.codes, row, cols, h * width, (h + 1) * width);
      add_terms(row, da, terms.att_src, heads, width);
      if (terms.da_dst) add_terms(row, terms.da_dst + j * heads, terms.att_dst, heads, width);
      if (!out) writer.write(row, row, j);
    }
  });
  return enough;
}
