// GAT's attention and weighted sum on codes (ops/integer_attention.py), and sums by weights that are given
// (ops/integer_weighted_sum.py), a destination at a time. Weights of edges are unsigned codes of eight bits; rows are
// added kGroup edges an instruction, exact in int32, and in int64 beyond kAttentionEdges.

constexpr int64_t kAttentionEdges = 32768;

// Scratch of one thread, for rows of at most `degree` edges. Weights are [groups][heads][kGroup].
struct AttentionScratch {
  Buffer<float> logits;
  Buffer<uint8_t> weights;
  Buffer<const uint8_t*> rows;
  Buffer<uint8_t> unpacked, zeros;
  Buffer<int32_t> sums;
  Buffer<int64_t> totals, dens;
  Buffer<float> result;
  AttentionScratch(const IntegerAttention& of, int64_t degree, int64_t cols)
      : logits(degree * of.heads + 2 * kLanes),
        weights((degree + 2 * kLanes) * of.heads),
        rows(degree + 2 * kGroup),
        unpacked(of.bits == 4 ? (min_of(degree, kAttentionEdges) + 1) * of.stored : 0),
        zeros(of.stored + 64),
        sums(of.width + 64),
        totals(of.width + 64),
        dens(of.heads),
        result(cols + 64) {}
  bool enough() const {
    return logits.data && weights.data && rows.data && unpacked.data && zeros.data && sums.data && totals.data &&
           dens.data && result.data;
  }
};

// The rows of later edges, to be prefetched: those of col[0 .. count).
struct LaterRows {
  const uint8_t* x;
  int64_t stride;
  const int32_t* col;
  int64_t count;
  GOSSAMER_INLINED void prefetch(int64_t e, int64_t column) const {
    if (e < count) __builtin_prefetch(x + int64_t(col[e]) * stride + column, 0, 3);
  }
};

// sums[c] = sum over the edges of weight * code, for one head's columns; groups of weights are `step` bytes apart.
// Prefetching goes along with the sums: a burst of it would exceed the misses that a core can have at a time.
GOSSAMER_INLINE void attention_sums(const uint8_t* const* rows, const uint8_t* weights, int64_t step, int64_t edges,
                                    int64_t first, int64_t width, const LaterRows& later, int32_t* sums) {
  const int64_t groups = ceil_div(edges, kGroup);
#if defined(__AVX512VNNI__)
  for (int64_t c = 0; c < width; c += 64) {
    const __mmask64 there = width - c >= 64 ? ~__mmask64(0) : (__mmask64(1) << (width - c)) - 1;
    i32x16 acc[4];
    uint32_t total = 0;
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) acc[q] = splat(0);
    for (int64_t k = 0; k < groups; ++k) {
      __m512i x[4], y[4];
#pragma GCC unroll 4
      for (int e = 0; e < 4; ++e) later.prefetch(k * 4 + e, first + c);
#pragma GCC unroll 4
      for (int e = 0; e < 4; ++e)  // codes minus 128, signed
        x[e] = _mm512_xor_si512(_mm512_maskz_loadu_epi8(there, rows[k * 4 + e] + first + c), _mm512_set1_epi8(-128));
      y[0] = _mm512_unpacklo_epi8(x[0], x[1]);
      y[1] = _mm512_unpackhi_epi8(x[0], x[1]);
      y[2] = _mm512_unpacklo_epi8(x[2], x[3]);
      y[3] = _mm512_unpackhi_epi8(x[2], x[3]);
      x[0] = _mm512_unpacklo_epi16(y[0], y[2]);
      x[1] = _mm512_unpackhi_epi16(y[0], y[2]);
      x[2] = _mm512_unpacklo_epi16(y[1], y[3]);
      x[3] = _mm512_unpackhi_epi16(y[1], y[3]);
      uint32_t group;
      std::memcpy(&group, weights + k * step, 4);
      const uint32_t pairs = (group & 0x00ff00ffu) + (group >> 8 & 0x00ff00ffu);
      total += (pairs & 0xffffu) + (pairs >> 16);
      const i32x16 by = splat(int32_t(group));
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) acc[q] = dot_group(acc[q], by, i32x16{bits_of<i32x16::Part>(x[q])});
    }
    // Unpacking left columns 16 L + 4 q .. + 3 in quarter L of sum q.
    const i32x16 shift = splat(int32_t(total * 128u));
    __m512i t[4], u[4];
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) t[q] = bits_of<__m512i>((acc[q] + shift).part[0]);
    u[0] = _mm512_shuffle_i32x4(t[0], t[1], 0x44);
    u[1] = _mm512_shuffle_i32x4(t[0], t[1], 0xee);
    u[2] = _mm512_shuffle_i32x4(t[2], t[3], 0x44);
    u[3] = _mm512_shuffle_i32x4(t[2], t[3], 0xee);
    t[0] = _mm512_shuffle_i32x4(u[0], u[2], 0x88);
    t[1] = _mm512_shuffle_i32x4(u[0], u[2], 0xdd);
    t[2] = _mm512_shuffle_i32x4(u[1], u[3], 0x88);
    t[3] = _mm512_shuffle_i32x4(u[1], u[3], 0xdd);
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) store(sums + c + q * kLanes, i32x16{bits_of<i32x16::Part>(t[q])});
  }
#else
  for (int64_t c = 0; c < width; c += kLanes) {
    i32x16 acc = splat(0);
    for (int64_t k = 0; k < groups; ++k) {
      if (c % 64 == 0)
        for (int e = 0; e < kGroup; ++e) later.prefetch(k * kGroup + e, first + c);
      const i32x16 one = load_codes(rows[k * 2] + first, 8, c, width - c);
      const i32x16 two = load_codes(rows[k * 2 + 1] + first, 8, c, width - c);
      const uint8_t* group = weights + k * step;
      acc = dot_group(acc, one | two << 16, splat(int32_t(group[0]) | int32_t(group[1]) << 16));
    }
    store(sums + c, acc);
  }
#endif
}

struct IntegerAttentionRows {
  const Csr& a;
  const IntegerAttention& of;
  const Requantize& to;
  const Coder& coder;
  int64_t cols;
  bool streaming;
  AttentionScratch s;
  int64_t self;  // the row that follows those of the edges; -1: none
  GatTerms terms;

  IntegerAttentionRows(const Csr& a, const IntegerAttention& of, const Requantize& to, const Coder& coder, int64_t cols,
                       bool streaming, int64_t degree)
      : a(a),
        of(of),
        to(to),
        coder(coder),
        cols(cols),
        streaming(streaming),
        s(of, degree + 1, cols),
        self(-1),
        terms{of.a_src, of.a_dst, of.edge} {}

  // H heads, 0: any number.
  template <int H>
  void row(int64_t i) {
    const int64_t begin = a.rowptr[i], edges = a.rowptr[i + 1] - begin, n = edges + (of.own ? 1 : 0);
    self = of.own ? i : -1;
    if (of.weighted) take_weights(i, begin, edges);
    else if constexpr (H > 0) weigh<H>(i, begin, n);
    else weigh_any(i, begin, n);
    if (n == 0) {
      std::memset(s.result.data, 0, size_t(cols) * sizeof(float));
    } else if (n <= kAttentionEdges) {
      gather(begin, n);
      for (int64_t h = 0; h < of.heads; ++h) {
        attention_sums(s.rows.data, s.weights.data + h * kGroup, of.heads * kGroup, n, h * of.padded, of.width,
                       later(begin), s.sums.data);
        const int32_t zeros = int32_t(s.dens.data[h]) * of.zero;
        const float inverse = of.weighted ? 1.0f : 1.0f / float(int32_t(s.dens.data[h]));
        float* result = s.result.data + (of.mean ? 0 : h * of.width);
        for_vectors(of.width, [&](int64_t c, int64_t count) GOSSAMER_INLINED {
          const f32x16 share = to_float(load<i32x16>(s.sums.data + c) - splat(zeros)) * inverse;
          put_part(result + c, of.mean && h ? load_part(result + c, count) + share : share, count, false);
        });
      }
    } else {
      for (int64_t h = 0; h < of.heads; ++h) long_row(begin, n, h);
    }
    const RequantizedRow out = {to, coder, i, cols, streaming};
    put_row(out, 0, cols, [&](int64_t c, int64_t count) GOSSAMER_INLINED {
      return load<f32x16>(s.result.data + c) * load_part(of.mult + c, count);
    });
  }

  // One head of a row whose sums may not fit int32.
  void long_row(int64_t begin, int64_t n, int64_t h) {
    std::memset(s.totals.data, 0, size_t(of.width) * sizeof(int64_t));
    for (int64_t from = 0; from < n; from += kAttentionEdges) {
      const int64_t count = min_of(kAttentionEdges, n - from);
      gather(begin + from, count);
      const uint8_t* weights = s.weights.data + from * of.heads + h * kGroup;
      attention_sums(s.rows.data, weights, of.heads * kGroup, count, h * of.padded, of.width, later(begin + from),
                     s.sums.data);
      for (int64_t c = 0; c < of.width; ++c) s.totals.data[c] += s.sums.data[c];
    }
    float* result = s.result.data + (of.mean ? 0 : h * of.width);
    const float inverse = of.weighted ? 1.0f : 1.0f / float(s.dens.data[h]);
    for (int64_t c = 0; c < of.width; ++c) {
      const float share = float(s.totals.data[c] - s.dens.data[h] * of.zero) * inverse;
      result[c] = of.mean && h ? result[c] + share : share;
    }
  }

  // Those that are kPrefetchEdges behind an edge; rows that are unpacked are prefetched there.
  LaterRows later(int64_t begin) const {
    const int64_t from = begin + kPrefetchEdges, nnz = a.rowptr[a.num_dst];
    return {of.x, of.stride, a.col + min_of(from, nnz), of.bits == 4 ? 0 : max_of<int64_t>(0, nnz - from)};
  }

  // Where the rows of some edges are, filled up with rows of zeros to whole groups; of four bits, unpacked.
  void gather(int64_t begin, int64_t n) {
    const int64_t nnz = a.rowptr[a.num_dst];
    for (int64_t e = 0; e < n; ++e) {
      const bool own = self >= 0 && begin + e == a.rowptr[self + 1];
      const uint8_t* from = of.x + (own ? self : int64_t(a.col[begin + e])) * of.stride;
      if (of.bits == 4) {
        const int64_t ahead = begin + e + kPrefetchEdges;
        if (ahead < nnz) prefetch_bytes(of.x + int64_t(a.col[ahead]) * of.stride, of.stride);
        unpack_codes(from, of.stride, s.unpacked.data + e * of.stored);
        from = s.unpacked.data + e * of.stored;
      }
      s.rows.data[e] = from;
    }
    for (int64_t e = n; e < n + kGroup; ++e) s.rows.data[e] = s.zeros.data;
  }

  GOSSAMER_INLINED uint8_t* weight_of(int64_t e, int64_t h) {
    return s.weights.data + (e / kGroup * of.heads + h) * kGroup + e % kGroup;
  }
  void clear_last_group(int64_t n) {
    for (int64_t e = n; e % kGroup; ++e)
      for (int64_t h = 0; h < of.heads; ++h) *weight_of(e, h) = 0;
  }

  // Sixteen codes of edges e .. and their H heads, to their groups; whole groups are put together in a register, as a
  // number that is read from just written bytes waits for all of them.
  template <int H>
  GOSSAMER_INLINED void put_groups(i32x16 code, int64_t e) {
    uint8_t bytes[kLanes];
    narrow_bytes(bytes, code);
    constexpr int edges = kLanes / H;
    if constexpr (edges % kGroup == 0) {
      uint8_t* to_groups = s.weights.data + e / kGroup * H * kGroup;
#if defined(__AVX2__)
      alignas(16) uint8_t order[kLanes];
#pragma GCC unroll 16
      for (int l = 0; l < kLanes; ++l) order[(l / H / kGroup * H + l % H) * kGroup + l / H % kGroup] = uint8_t(l);
      const __m128i placed = _mm_shuffle_epi8(load128(bytes), load128(order));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to_groups), placed);
#else
      for (int l = 0; l < kLanes; ++l) to_groups[(l / H / kGroup * H + l % H) * kGroup + l / H % kGroup] = bytes[l];
#endif
    } else {
      for (int l = 0; l < kLanes; ++l) *weight_of(e + l / H, l % H) = bytes[l];
    }
  }

  // Weights that are given, of one head, and their sum.
  void take_weights(int64_t i, int64_t begin, int64_t edges) {
    int64_t sum = 0;
    for (int64_t e = 0; e < edges; ++e) {
      s.weights.data[e] = of.weights[begin + e];
      sum += s.weights.data[e];
    }
    if (of.own) {
      s.weights.data[edges] = of.own[i];
      sum += of.own[i];
    }
    clear_last_group(edges + (of.own ? 1 : 0));
    s.dens.data[0] = sum;
  }

  // Codes of the weights, and their sums: lane l of a vector belongs to head l % H.
  template <int H>
  void weigh(int64_t i, int64_t begin, int64_t n) {
    const f32x16 dst = dst_lanes<H>(terms, i), lowest = splat(-__builtin_inff());
    f32x16 top = lowest;
    for (int64_t k = 0; k < n * H; k += kLanes) {
      const int64_t count = min_of<int64_t>(kLanes, n * H - k);
      const f32x16 sum = gat_sums<H>(a, terms, dst, begin + k / H, count);
      const f32x16 l = keep_part(select(sum < splat(0.0f), sum * of.slope, sum), count, -__builtin_inff());
      store(s.logits.data + k, l);
      top = maximum(l, top);
    }
    top = fold_lanes<H>(top, [](f32x16 x, f32x16 y) { return maximum(x, y); });
    i32x16 total = splat(0);
    for (int64_t k = 0; k < n * H; k += kLanes) {
      const f32x16 steps = (top - load<f32x16>(s.logits.data + k)) * of.per_step;
      const i32x16 index = nearest_int(maximum(minimum(steps, splat(float(of.table_size - 1))), splat(0.0f)));
      i32x16 code = truncate(lookup(of.table, index));
      if (n * H - k < kLanes) code = code & (bits_of<i32x16>(lane_numbers()) < splat(int32_t(n * H - k)));
      total = total + code;
      put_groups<H>(code, k / H);
    }
    clear_last_group(n);
    int32_t lanes[kLanes];
    store(lanes, total);
    for (int h = 0; h < H; ++h) {
      s.dens.data[h] = 0;
      for (int l = h; l < kLanes; l += H) s.dens.data[h] += lanes[l];
    }
  }
  // The same for any number of heads.
  void weigh_any(int64_t i, int64_t begin, int64_t n) {
    const int64_t heads = of.heads;
    for (int64_t e = 0; e < n; ++e) {
      for (int64_t h = 0; h < heads; ++h) {
        const float l = gat_sum(terms, begin + e, i, a.col[begin + e], heads, h);
        s.logits.data[e * heads + h] = l < 0 ? l * of.slope : l;
      }
    }
    for (int64_t h = 0; h < heads; ++h) {
      float top = -__builtin_inff();
      for (int64_t e = 0; e < n; ++e) top = max_of(top, s.logits.data[e * heads + h]);
      s.dens.data[h] = 0;
      for (int64_t e = 0; e < n; ++e) {
        const float steps = min_of((top - s.logits.data[e * heads + h]) * of.per_step, float(of.table_size - 1));
        const uint8_t code = uint8_t(of.table[steps > 0 ? int32_t(__builtin_rintf(steps)) : 0]);
        *weight_of(e, h) = code;
        s.dens.data[h] += code;
      }
    }
    clear_last_group(n);
  }
};

static bool integer_attention(Csr a, IntegerAttention of, Requantize to, int64_t cols, int threads) {
  bool enough = true;
  const bool streaming = streams(to, a.num_dst, cols);
  const Coder coder(to);
  by_heads(of.weighted ? 1 : of.heads, [&](auto tag) {
    constexpr int H = decltype(tag)::value;
    parallel_rows(a.rowptr, a.num_dst, of.stride, threads, [&](int64_t first, int64_t last) {
      IntegerAttentionRows rows(a, of, to, coder, cols, streaming, longest_row(a.rowptr, first, last));
      if (!rows.s.enough()) {
        __atomic_store_n(&enough, false, __ATOMIC_RELAXED);
        return;
      }
      for (int64_t i = first; i < last; ++i) rows.template row<H>(i);
      stream_fence();
    });
  });
  return enough;
}
