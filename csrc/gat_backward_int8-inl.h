// The backward of gat_int8-inl.h: one pass over the edges, by source. Weights are recomputed in a thread's scratch; dot
// products and sums are those of edge_codes-inl.h.

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
  int64_t next(int64_t lane) const { return lane + kLanes < period ? lane + kLanes : 0; }
  // The first lanes, one per head, to all others.
  void spread(float* lanes) const {
    for (int64_t l = heads; l < period; ++l) lanes[l] = lanes[l - heads];
  }
};

template <int H>
GOSSAMER_INLINE void copy_heads(float* to, const float* from, int64_t heads) {
  std::memcpy(to, from, size_t(H > 0 ? H : heads) * sizeof(float));
}

// What one source and the edges at hand need: per edge and head a_dst, the logarithm of softmax's sum, the mean of dp,
// a_edge, the products of codes (later ds), w (later q), g's scale and the words of dropout's index; per lane a_src,
// the sum of ds, the factor that makes weights integers, and the bits of the largest.
struct GatScratch {
  float *dst, *log_sums, *mean, *edge, *ds, *w, *scale, *src, *da, *by;
  int32_t *top, *shifts;
  uint32_t *low, *high;
};

// From products of codes to w, times the scale of its row, and ds, and the sums of ds.
GOSSAMER_INLINE void gat_edges_backward(GatScratch s, float own_scale, bool has_edge, float slope, const DropRule* rule,
                                        HeadLanes lanes, int64_t n) {
  std::memset(s.top, 0, size_t(lanes.period) * sizeof(int32_t));
  for (int64_t c = 0, l = 0; c < n; c += kLanes, l = lanes.next(l)) {
    f32x16 logit = load<f32x16>(s.src + l) + load<f32x16>(s.dst + c);
    if (has_edge) logit = logit + load<f32x16>(s.edge + c);
    const f32x16 below = activate<kLeakyRelu>(logit, slope) - load<f32x16>(s.log_sums + c);
    const f32x16 p = select(below > splat(80.0f), splat(__builtin_inff()), exp_nonpositive(below));
    const f32x16 scale = load<f32x16>(s.scale + c);
    const u32x16 dots = load<u32x16>(s.ds + c) - load<u32x16>(s.shifts + l);
    f32x16 w = p, dp = to_float(bits_of<i32x16>(dots)) * (scale * own_scale);
    if (rule) {
      const u32x16 words = mix(load<u32x16>(s.low + c), load<u32x16>(s.high + c), rule->key);
      const i32x16 kept = rule->none ? splat(0) : words >= splat(rule->threshold);
      w = select(kept, w * rule->scale, splat(0.0f));
      dp = select(kept, dp * rule->scale, splat(0.0f));
    }
    const f32x16 ds = p * (dp - load<f32x16>(s.mean + c)) * derivative<kLeakyRelu>(logit, slope);
    const f32x16 there = keep_part(ds, n - c, 0.0f), scaled = keep_part(w * scale, n - c, 0.0f);
    store(s.ds + c, there);
    store(s.w + c, scaled);
    store(s.da + l, load<f32x16>(s.da + l) + there);
    store(s.top + l, maximum(load<i32x16>(s.top + l), bits_of<i32x16>(scaled) & 0x7fffffff));
  }
}

// w of the edges as integers.
template <int H>
GOSSAMER_INLINE void round_weights(GatScratch s, HeadLanes lanes, int64_t edges, EdgeCodes to) {
  const int64_t heads = H > 0 ? H : lanes.heads, n = edges * heads;
  for (int64_t h = 0; h < heads; ++h) {
    int32_t top = 0;  // magnitudes order like their bits, NaN and infinity above all numbers
    for (int64_t l = h; l < lanes.period; l += heads) top = max_of(top, s.top[l]);
    const float largest = bits_of<float>(top);
    const bool finite = top < 0x7f800000, some = finite && largest >= kTiny;
    to.step[h] = !finite ? __builtin_nanf("") : some ? largest / kWeightMax : 0.0f;
    s.by[h] = some ? kWeightMax / largest : 0.0f;
  }
  lanes.spread(s.by);
  std::memset(s.top, 0, size_t(lanes.period) * sizeof(int32_t));
  for (int64_t c = 0, l = 0; c < n; c += kLanes, l = lanes.next(l)) {
    const f32x16 by = load<f32x16>(s.by + l);
    const i32x16 q = nearest_int(select(by != splat(0.0f), load<f32x16>(s.w + c) * by, splat(0.0f)));
    store(s.top + l, load<i32x16>(s.top + l) + q);
#if defined(__AVX512VNNI__)
    if constexpr (H == 4) {  // four edges by four heads: a group, but for the order
      const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
      const __m512i codes = bits_of<__m512i>(q.part[0]);
      const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(codes, _mm512_set1_epi32(128)), 8);
      const auto put = [order](Code* at, __m512i x) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm_shuffle_epi8(_mm512_cvtepi32_epi8(x), order));
      };
      put(to.high + c, upper);
      put(to.low + c, codes);
      continue;
    }
#endif
    store(s.w + c, q);
  }
  for (int64_t h = 0; h < heads; ++h) {
    to.sums[h] = 0;
    for (int64_t l = h; l < lanes.period; l += heads) to.sums[h] += s.top[l];
  }
  if (H == 4 && kGroup == 4) return;  // lanes beyond the last edge are zero
  Code *high = to.high, *low = to.low;
  const float* w = s.w;
  for (int64_t e = 0; e < ceil_div(edges, kGroup) * kGroup; ++e)
    for (int64_t h = 0; h < heads; ++h)
      put_code(high, low, (e / kGroup * heads + h) * kGroup + e % kGroup,
               e < edges ? bits_of<int32_t>(w[e * heads + h]) : 0);
}

// A thread's scratch.
struct GatRoom {
  HeadLanes lanes;
  int64_t room;
  Buffer<float> floats, steps, row;
  Buffer<int32_t> ints, sums;
  Buffer<uint32_t> words;
  Buffer<Code> codes;
  Buffer<int8_t> zeros;
  const int8_t* rows[kGatEdges] = {};
  GatRoom(int64_t cols, int64_t heads)
      : lanes(heads),
        room(padded(kGatEdges * heads)),
        floats(7 * room + 3 * lanes.period),
        steps(heads),
        row(cols),
        ints(2 * lanes.period),
        sums(heads),
        words(2 * room),
        codes(2 * room),
        zeros(cols) {}
  bool enough() const {
    return floats.data && steps.data && row.data && ints.data && sums.data && words.data && codes.data && zeros.data;
  }
  GatScratch scratch() const {
    float *f = floats.data, *lane = f + 7 * room;
    return {f,
            f + room,
            f + 2 * room,
            f + 3 * room,
            f + 4 * room,
            f + 5 * room,
            f + 6 * room,
            lane,
            lane + lanes.period,
            lane + 2 * lanes.period,
            ints.data,
            ints.data + lanes.period,
            words.data,
            words.data + room};
  }
  EdgeCodes weights() { return {codes.data, codes.data + room, sums.data, steps.data, rows, zeros.data}; }
};

// What an edge reads of its destination, together: a_dst, log_sums and the mean of dp, heads of each, and g's scale.
static void gat_records(const GatBackward& b, const float* g_scale, int64_t heads, int threads) {
  parallel_for(b.num_dst, 4096, threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      float* to = b.records + i * b.stride;
      for (int64_t h = 0; h < heads; ++h) {
        to[h] = b.terms.dst ? b.terms.dst[i * heads + h] : 0.0f;
        to[heads + h] = b.log_sums[i * heads + h];
        to[2 * heads + h] = b.dots[i * heads + h];
      }
      to[3 * heads] = g_scale[i];
    }
  });
}

// Edges begin .. begin + n - 1 out of a source whose row of codes is `own`: what they need, into the scratch.
template <int H>
GOSSAMER_INLINE void read_edges(Csr t, GatBackward b, const int8_t* g, const int8_t* own, GatScratch s,
                                const int8_t** rows, int64_t cols, int64_t given_heads, bool drops, int64_t begin,
                                int64_t n) {
  const int64_t heads = H > 0 ? H : given_heads, width = cols / heads, nnz = t.rowptr[t.num_dst];
  const bool wide = (nnz * heads) >> 32;
  for (int64_t k = 0; k < n; ++k) {
    const int64_t e = begin + k, ahead = e + kPrefetchEdges, at = k * heads;
    if (ahead < nnz) {
      prefetch_bytes(b.records + t.col[ahead] * b.stride, (3 * heads + 1) * int64_t(sizeof(float)));
      prefetch_bytes(g + t.col[ahead] * cols, cols / 2);  // the other half later: few requests can be in flight
    }
    const int64_t i = t.col[e], place = b.perm[e] * heads;
    const float* record = b.records + i * b.stride;
    copy_heads<H>(s.dst + at, record, heads);
    copy_heads<H>(s.log_sums + at, record + heads, heads);
    copy_heads<H>(s.mean + at, record + 2 * heads, heads);
    const float scale = record[3 * heads];
    for (int64_t l = 0; l < heads; ++l) s.scale[at + l] = scale;
    if (b.terms.edge) copy_heads<H>(s.edge + at, b.terms.edge + place, heads);
    if (drops) {
      for (int64_t l = 0; l < heads; ++l) s.low[at + l] = uint32_t(place) + uint32_t(l);
      for (int64_t l = 0; wide && l < heads; ++l) s.high[at + l] = uint32_t((place + l) >> 32);
    }
    rows[k] = g + i * cols;
    int32_t* sums = reinterpret_cast<int32_t*>(s.ds + at);
    head_sums(own, rows[k], heads, width, sums);
  }
}

// Sources first .. last - 1.
template <int H>
static void gat_sources(Csr t, GatBackward b, GatRule rule, Int8Rows g, Int8Rows h, float* out, RowWriter writer,
                        GatScratch s, EdgeCodes weights, HeadLanes lanes, float* scratch, int64_t cols, int64_t first,
                        int64_t last) {
  const int64_t heads = H > 0 ? H : lanes.heads, width = cols / heads, nnz = t.rowptr[t.num_dst];
  const DropRule dropping = drop_rule(rule.drop, rule.seed);
  for (int64_t j = first; j < last; ++j) {
    float* row = out ? out + j * cols : scratch;
    if (kGroup == 4) {
      head_sums(h.codes + j * cols, weights.zeros, heads, width, s.shifts);
      for (int64_t l = heads; l < lanes.period; ++l) s.shifts[l] = s.shifts[l - heads];
    }
    copy_heads<H>(s.src, b.terms.src + j * heads, heads);
    lanes.spread(s.src);
    std::memset(s.da, 0, size_t(lanes.period) * sizeof(float));
    int64_t begin = t.rowptr[j];
    bool starts = true;
    do {
      const int64_t n = min_of(kGatEdges, t.rowptr[j + 1] - begin), groups = ceil_div(n, kGroup);
      read_edges<H>(t, b, g.codes, h.codes + j * cols, s, weights.rows, cols, heads, rule.drop > 0, begin, n);
      gat_edges_backward(s, h.scale[j], b.terms.edge, rule.slope, rule.drop > 0 ? &dropping : nullptr, lanes,
                         n * heads);
      round_weights<H>(s, lanes, n, weights);
      for (int64_t k = 0; k < n; ++k) {
        const int64_t ahead = begin + k + kPrefetchEdges;
        if (ahead < nnz) {
          prefetch_bytes(g.codes + t.col[ahead] * cols + cols / 2, cols - cols / 2);
          __builtin_prefetch(b.ds + b.perm[ahead] * heads, 1);
        }
        copy_heads<H>(b.ds + b.perm[begin + k] * heads, s.ds + k * heads, heads);
      }
      for (int64_t k = n; k < groups * kGroup; ++k) weights.rows[k] = weights.rows[k - 1];
      for (int64_t k = 0; k < heads; ++k) sum_codes(weights, heads, k, groups, k * width, (k + 1) * width, starts, row);
      begin += n;
      starts = false;
    } while (begin < t.rowptr[j + 1]);
    lanes.fold(s.da);
    copy_heads<H>(b.da_src + j * heads, s.da, heads);
    if (!out) writer.write(row, row, j);
  }
}

// By source j: ds of the edges out of it, each at its place in the graph; da_src, their sum; and rows of the sum of
// w_e g_i, to `out` or as codes.
static bool gat_backward_int8(Csr t, GatBackward b, GatRule rule, Int8Rows g, Int8Rows h, float* out, RowCodes to,
                              int64_t cols, int64_t heads, int threads) {
  const RowWriter writer(to, cols);
  bool enough = true;
  gat_records(b, g.scale, heads, threads);
  parallel_rows(t.rowptr, t.num_dst, cols, threads, [&](int64_t first, int64_t last) {
    GatRoom room(cols, heads);
    if (!room.enough()) {
      __atomic_store_n(&enough, false, __ATOMIC_RELAXED);
      return;
    }
    by_heads(heads, [&](auto tag) {
      gat_sources<decltype(tag)::value>(t, b, rule, g, h, out, writer, room.scratch(), room.weights(), room.lanes,
                                        room.row.data, cols, first, last);
    });
  });
  return enough;
}
