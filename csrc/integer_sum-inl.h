// Sums of neighbours' codes (ops/integer_sum.py), exact: in int32, or int64 where a row has too many edges for that.
//
// Codes are added where they lie in a register, as 16-bit words: word m of phase p is column m * phases + p, with two
// phases for codes of eight bits (the low and the high bytes of words) and four for codes of four. Results are put
// together the same way, so columns never change places.

typedef uint16_t Words __attribute__((vector_size(kPartLanes * 4)));
typedef uint8_t Bytes __attribute__((vector_size(kPartLanes * 4)));
constexpr int64_t kWords = kPartLanes * 2, kWordBytes = kPartLanes * 4;
#if defined(__AVX512F__)
constexpr int kSumRegisters = 4;
#else
constexpr int kSumRegisters = 2;
#endif
constexpr int64_t kSumWords = kSumRegisters * kWords, kSumBytes = kSumRegisters * kWordBytes;
static_assert(kSumWords % kLanes == 0, "whole vectors");

constexpr int64_t kMostWeight = (int64_t(1) << 31) / 255 - 1;  // so many codes, each with weight 1, fit int32

template <int Bits>
struct Phases {
  static constexpr int count = 16 / Bits;
  static constexpr int64_t chunk = Bits == 8 ? 256 : 4096;  // so many codes fit a word
  static constexpr int64_t flush = Bits == 8 ? 1 : 16;      // and so many a byte: 16 * 15 < 256
};

// words[p][m] = the sums of R registers of bytes over the sources col[begin .. end); codes_of(j, r) is register r of
// row j.
template <int Bits, int R, typename Load, typename Ahead>
GOSSAMER_INLINE void sum_words(const int32_t* col, int64_t begin, int64_t end, const Load& codes_of, const Ahead& ahead,
                               uint16_t (*words)[kSumWords]) {
  constexpr int P = Phases<Bits>::count;
  Words sums[P][R];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) sums[p][r] = Words{};
  if constexpr (Bits == 8) {
    for (int64_t e = begin; e < end; ++e) {
      ahead(e);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const Words codes = bits_of<Words>(codes_of(col[e], r));
        sums[0][r] += codes & uint16_t(255);
        sums[1][r] += codes >> 8;
      }
    }
  } else {
    for (int64_t e = begin; e < end;) {
      const int64_t stop = min_of(end, e + Phases<Bits>::flush);
      Bytes low[R], high[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) low[r] = high[r] = Bytes{};
      for (; e < stop; ++e) {
        ahead(e);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const Bytes codes = codes_of(col[e], r);
          low[r] += codes & uint8_t(15);
          high[r] += bits_of<Bytes>(bits_of<Words>(codes) >> 4) & uint8_t(15);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        sums[0][r] += bits_of<Words>(low[r]) & uint16_t(255);
        sums[1][r] += bits_of<Words>(high[r]) & uint16_t(255);
        sums[P - 2][r] += bits_of<Words>(low[r]) >> 8;
        sums[P - 1][r] += bits_of<Words>(high[r]) >> 8;
      }
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) std::memcpy(words[p] + r * kWords, &sums[p][r], sizeof(Words));
}

// Factors and shifts by phase, filled up to whole blocks.
struct ByPhase {
  int phases;
  int64_t words;
  Buffer<float> mult, shift;
  ByPhase(const float* factor, const float* added, int64_t cols, int phases)
      : phases(phases),
        words(ceil_div(ceil_div(cols, phases), kSumWords) * kSumWords),
        mult(phases * words),
        shift(phases * words) {
    for (int64_t c = 0; enough() && c < cols; ++c) {
      mult.data[c % phases * words + c / phases] = factor[c];
      shift.data[c % phases * words + c / phases] = added ? added[c] : 0.0f;
    }
  }
  bool enough() const { return mult.data && shift.data; }
};

// The neighbour sums of one thread.
template <int Bits>
struct IntegerSums {
  static constexpr int P = Phases<Bits>::count;
  const Csr& a;
  const IntegerSum& of;
  const Requantize& to;
  const ByPhase& by;
  const Coder& coder;
  int64_t cols, bytes;  // bytes: of a result's columns, in codes of as many bits
  bool streaming, wide, by_phase;
  Buffer<float> row;  // sums in the order of columns, where they cannot be requantised by phase
  alignas(64) uint16_t words[P][kSumWords], own[P][kSumWords];
  alignas(64) uint32_t totals[P][kSumWords];

  IntegerSums(const Csr& a, const IntegerSum& of, const Requantize& to, const ByPhase& by, const Coder& coder,
              int64_t cols, bool streaming)
      : a(a),
        of(of),
        to(to),
        by(by),
        coder(coder),
        cols(cols),
        bytes(code_bytes(cols, Bits)),
        streaming(streaming),
        wide(false),
        by_phase(false),
        row(cols + 4 * kSumWords) {}

  // Whether the sum of row i may not fit int32.
  bool is_wide(int64_t i) const {
    const int64_t most = __builtin_labs(of.neighbours) * (a.rowptr[i + 1] - a.rowptr[i]) + __builtin_labs(of.own);
    return most > kMostWeight;
  }

  void sum(int64_t i) {
    wide = is_wide(i);
    by_phase = to.bits == Bits && !to.add && !wide;
    int64_t c = 0;
    for (; c + kSumBytes <= bytes; c += kSumBytes) block<kSumRegisters, false>(i, c, kSumBytes);
    for (; c < bytes && c + kWordBytes <= of.stride; c += kWordBytes)  // beyond the last column there may be others
      block<1, false>(i, c, min_of(kWordBytes, bytes - c));
    if (c < bytes) block<1, true>(i, c, bytes - c);
    if (by_phase) return;
    const RequantizedRow result = {to, coder, i, cols, streaming};
    put_row(result, 0, cols, [&](int64_t k, int64_t left) GOSSAMER_INLINED {
      return load<f32x16>(row.data + k) * load_part(of.mult + k, left);
    });
  }

  // R registers from byte c on, or part of one.
  template <int R, bool Part>
  void block(int64_t i, int64_t c, int64_t count) {
    const auto codes_of = [&](int64_t j, int r) GOSSAMER_INLINED {
      Bytes codes = {};
      std::memcpy(&codes, of.x + j * of.stride + c + r * kWordBytes, Part ? size_t(count) : sizeof codes);
      return codes;
    };
    const int64_t begin = a.rowptr[i], end = a.rowptr[i + 1], nnz = a.rowptr[a.num_dst];
    const auto ahead = [&](int64_t e) GOSSAMER_INLINED {
      if (e + kPrefetchEdges < nnz) prefetch_bytes(of.x + int64_t(a.col[e + kPrefetchEdges]) * of.stride + c, count);
    };
    constexpr int64_t chunk = Phases<Bits>::chunk;
    const bool once = end - begin <= chunk;
    sum_words<Bits, R>(a.col, begin, once ? end : begin + chunk, codes_of, ahead, words);
    if (!once) {
      add_words<true>();
      for (int64_t from = begin + chunk; from < end; from += chunk) {
        sum_words<Bits, R>(a.col, from, min_of(end, from + chunk), codes_of, ahead, words);
        add_words<false>();
      }
    }
    if (of.own) {
      const int32_t self = int32_t(i);
      sum_words<Bits, R>(&self, 0, 1, codes_of, [](int64_t) {}, own);
    }
    const uint32_t zeros = uint32_t(of.zero) * (uint32_t(of.neighbours) * uint32_t(end - begin) + uint32_t(of.own));
    for (int64_t m = 0; 2 * m < count; m += kLanes) {
      const auto sums = [&](int p) GOSSAMER_INLINED {
        u32x16 s = once ? bits_of<u32x16>(widen(words[p] + m)) : load<u32x16>(totals[p] + m);
        if (of.neighbours != 1) s = s * uint32_t(of.neighbours);
        if (of.own) s = s + bits_of<u32x16>(widen(own[p] + m)) * uint32_t(of.own);
        return bits_of<i32x16>(s - zeros);
      };
      if (by_phase) requantize_words(i, c / 2 + m, count - 2 * m, sums);
      else if (wide) spread_wide((c / 2 + m) * P, m, end - begin, once);
      else spread((c / 2 + m) * P, sums);
    }
  }
  template <bool First>
  void add_words() {
    for (int p = 0; p < P; ++p)
      for (int64_t m = 0; m < kSumWords; ++m) totals[p][m] = words[p][m] + (First ? 0 : totals[p][m]);
  }

  // Sixteen words of codes from word w on, as far as `count` bytes go.
  template <typename F>
  GOSSAMER_INLINED void requantize_words(int64_t i, int64_t w, int64_t count, const F& sums) {
    i32x16 result = splat(0);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      f32x16 t = to_float(sums(p)) * load<f32x16>(by.mult.data + p * by.words + w);
      if (to.row) t = t * to.row[i];
      if (to.shift) t = t + load<f32x16>(by.shift.data + p * by.words + w);
      result = result | coder(t) << (Bits * p);
    }
    uint8_t* out = to.codes + i * bytes + 2 * w;
    uint16_t narrowed[kLanes];
    narrow(narrowed, result);
    std::memcpy(out, narrowed, count >= 2 * kLanes ? sizeof narrowed : size_t(count));
  }
  // Sixteen words of sums, from this column on, in the order of columns; the row has room for whole vectors.
  template <typename F>
  GOSSAMER_INLINED void spread(int64_t column, const F& sums) {
    f32x16 ordered[P];
    if constexpr (P == 2) {
      interleave(to_float(sums(0)), to_float(sums(1)), ordered);
    } else {
      f32x16 even[2], odd[2];
      interleave(to_float(sums(0)), to_float(sums(2)), even);
      interleave(to_float(sums(1)), to_float(sums(3)), odd);
      interleave(even[0], odd[0], ordered);
      interleave(even[1], odd[1], ordered + 2);
    }
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) store(row.data + column + p * kLanes, ordered[p]);
  }
  // The same in int64.
  void spread_wide(int64_t column, int64_t m, int64_t degree, bool once) {
    const int64_t zeros = of.zero * (of.neighbours * degree + of.own);
    for (int p = 0; p < P; ++p)
      for (int k = 0; k < kLanes && column + k * P + p < cols; ++k) {
        const int64_t sum = once ? words[p][m + k] : totals[p][m + k];
        row.data[column + k * P + p] = float(of.neighbours * sum + (of.own ? of.own * own[p][m + k] : 0) - zeros);
      }
  }
};

template <int Bits>
static bool integer_sum_as(const Csr& a, const IntegerSum& of, const Requantize& to, int64_t cols, int threads) {
  const ByPhase by(of.mult, to.shift, cols, Phases<Bits>::count);
  if (!by.enough()) return false;
  bool enough = true;
  const bool streaming = streams(to, a.num_dst, cols);
  const Coder coder(to);
  parallel_rows(a.rowptr, a.num_dst, of.stride, threads, [&](int64_t first, int64_t last) {
    IntegerSums<Bits> sums(a, of, to, by, coder, cols, streaming);
    if (!sums.row.data) {
      __atomic_store_n(&enough, false, __ATOMIC_RELAXED);
      return;
    }
    for (int64_t i = first; i < last; ++i) sums.sum(i);
    stream_fence();
  });
  return enough;
}
static bool integer_sum(Csr a, IntegerSum of, Requantize to, int64_t cols, int threads) {
  return of.bits == 8 ? integer_sum_as<8>(a, of, to, cols, threads) : integer_sum_as<4>(a, of, to, cols, threads);
}

// The largest code of each column over the neighbours (ops/integer_max.py); `zero` where there is none.
static void integer_max(Csr a, const uint8_t* x, int bits, int64_t stride, int32_t zero, uint8_t* out, int threads) {
  const uint8_t nothing = uint8_t(bits == 4 ? zero | zero << 4 : zero);
  parallel_rows(a.rowptr, a.num_dst, stride, threads, [&](int64_t first, int64_t last) {
    const int64_t nnz = a.rowptr[a.num_dst];
    for (int64_t i = first; i < last; ++i) {
      uint8_t* best = out + i * stride;
      std::memset(best, a.rowptr[i] == a.rowptr[i + 1] ? nothing : 0, size_t(stride));
      for (int64_t e = a.rowptr[i]; e < a.rowptr[i + 1]; ++e) {
        if (e + kPrefetchEdges < nnz) prefetch_bytes(x + int64_t(a.col[e + kPrefetchEdges]) * stride, stride);
        const uint8_t* row = x + int64_t(a.col[e]) * stride;
        if (bits == 8) {
          for (int64_t b = 0; b < stride; ++b) best[b] = max_of(best[b], row[b]);
        } else {
          for (int64_t b = 0; b < stride; ++b) {
            const uint8_t low = max_of(uint8_t(best[b] & 15), uint8_t(row[b] & 15));
            best[b] = uint8_t(low | max_of(uint8_t(best[b] & 240), uint8_t(row[b] & 240)));
          }
        }
      }
    }
  });
}
