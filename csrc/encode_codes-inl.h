// Compressed features: codes of rows (ops/encode_codes.py). A chunk of rows is one thread's, and says which of its rows
// is the first that holds NaN or infinity.

constexpr int64_t kNoRow = INT64_MAX;

GOSSAMER_INLINE int64_t first_bad_row(const float* x, int64_t first, int64_t last, int64_t cols) {
  for (int64_t i = first; i < last; ++i) {
    for (int64_t c = 0; c < cols; ++c) {
      if ((bits_of<uint32_t>(x[i * cols + c]) & 0x7fffffffu) >= 0x7f800000u) return i;
    }
  }
  return kNoRow;
}

// How many of the 2^bits - 1 ascending thresholds, [.., cols or 1], are below x.
template <int Bits, bool PerColumn>
struct Search {
  const float* thresholds;
  int64_t cols;
  float few[kLanes];  // for all columns: every threshold, or of 8 bits every sixteenth
  Search(const float* t, int64_t c) : thresholds(t), cols(c) {
    constexpr int count = (1 << (Bits < 4 ? Bits : 4)) - 1, apart = Bits == 8 ? 16 : 1;
    for (int k = 0; !PerColumn && k < kLanes; ++k) few[k] = k < count ? t[apart * k + apart - 1] : __builtin_inff();
  }
  // Columns c .. c + count - 1; the others of sixteen are anything.
  GOSSAMER_INLINED i32x16 operator()(f32x16 x, int64_t c, int64_t count) const {
    i32x16 q = splat(0);
    if constexpr (Bits <= 2 || (PerColumn && Bits == 4)) {
      for (int k = 0; k < (1 << Bits) - 1; ++k)
        q = q - (x > (PerColumn ? load_part(thresholds + k * cols + c, count) : splat(few[k])));  // true is -1
      return q;
    } else if constexpr (!PerColumn) {  // of 8 bits the high four
      for (int half = 8; half; half /= 2) q = q + ((x > lookup16(few, q + (half - 1))) & half);
      if (Bits == 8) q = q << 4;
    }
    if constexpr (Bits == 8) {
      const i32x16 lane = minimum(bits_of<i32x16>(lane_numbers()), splat(int32_t(count - 1)));
      for (int half = PerColumn ? 128 : 8; half; half /= 2) {
        const i32x16 at = q + (half - 1);
        const f32x16 middle = PerColumn ? lookup(thresholds + c, at * int32_t(cols) + lane) : lookup(thresholds, at);
        q = q + ((x > middle) & half);
      }
    }
    return q;
  }
};

template <int Bits, bool PerColumn>
static void encode_scalar_rows(const float* x, const ScalarRows& to, uint8_t* codes, int64_t rows, int64_t chunk_rows,
                               int64_t* bad, int threads) {
  const int64_t cols = to.cols, bytes = ceil_div(cols * Bits, 8);
  const Search<Bits, PerColumn> search(to.table, cols);
  parallel_for(ceil_div(rows, chunk_rows), 1, threads, [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      const int64_t start = chunk * chunk_rows, end = min_of(rows, start + chunk_rows);
      i32x16 magnitude = splat(0);
      for (int64_t i = start; i < end; ++i) {
        const float* row = x + i * cols;
        uint8_t* out = codes + i * bytes;
        if (i + kRowsAhead < rows) prefetch_bytes(row + kRowsAhead * cols, cols * int64_t(sizeof(float)));
        for (int64_t c = 0; c < cols; c += 64) {
          const int64_t count = min_of<int64_t>(64, cols - c);
          uint8_t wide[64], squeezed[64];
          uint16_t masks[4] = {};
          std::memset(wide, 0, sizeof wide);
          for (int64_t k = 0; k < count; k += kLanes) {
            const int64_t lanes = min_of<int64_t>(kLanes, count - k);
            const f32x16 v = load_part(row + c + k, lanes);
            magnitude = maximum(magnitude, bits_of<i32x16>(v) & 0x7fffffff);
            const i32x16 q = search(v, c + k, lanes);
            if (Bits == 1) masks[k / kLanes] = uint16_t(lane_bits(splat(0) - q) & ((1u << lanes) - 1));
            else
              narrow_bytes(wide + k,
                           lanes < kLanes ? q & (bits_of<i32x16>(lane_numbers()) < splat(int32_t(lanes))) : q);
          }
          if (Bits == 1) std::memcpy(squeezed, masks, sizeof masks);
          else squeeze64<Bits>(wide, squeezed);
          if (count == 64) std::memcpy(out + c * Bits / 8, squeezed, 8 * Bits);
          else std::memcpy(out + c * Bits / 8, squeezed, size_t(ceil_div(count * Bits, 8)));
        }
      }
      bad[chunk] = max_lanes(magnitude) >= 0x7f800000 ? first_bad_row(x, start, end, cols) : kNoRow;
    }
  });
}

static void encode_scalar(const float* x, ScalarRows to, uint8_t* codes, int64_t rows, int64_t chunk_rows, int64_t* bad,
                          int threads) {
  by_bits(to.bits, [&](auto tag) {
    constexpr int Bits = decltype(tag)::value;
    if (to.per_column) encode_scalar_rows<Bits, true>(x, to, codes, rows, chunk_rows, bad, threads);
    else encode_scalar_rows<Bits, false>(x, to, codes, rows, chunk_rows, bad, threads);
  });
}

// Rows that are compared with a codebook together: as many as registers hold the scores of.
constexpr int kSearched = kParts == 1 ? 8 : 4;

// For each of kSearched rows xs [kSearched, width] the code of the largest score start_c + sum_k x_k book_kc, the sum
// in the order of k; of equal scores the lowest code. The book is [codes / 16][width][16].
GOSSAMER_INLINE void best_codes(const float* xs, const float* book, const float* start, int64_t width, int64_t codes,
                                int32_t* found) {
  f32x16 best[kSearched];
  i32x16 block[kSearched];
#pragma GCC unroll 8
  for (int r = 0; r < kSearched; ++r) best[r] = splat(-__builtin_inff()), block[r] = splat(0);
  for (int64_t j = 0; j < codes; j += kLanes) {
    f32x16 score[kSearched];
    const float* entries = book + j * width;
#pragma GCC unroll 8
    for (int r = 0; r < kSearched; ++r) score[r] = load<f32x16>(start + j);
    for (int64_t k = 0; k < width; ++k) {
      const f32x16 c = load<f32x16>(entries + k * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kSearched; ++r) score[r] = score[r] + c * xs[r * width + k];
    }
#pragma GCC unroll 8
    for (int r = 0; r < kSearched; ++r) {
      const i32x16 better = score[r] > best[r];
      best[r] = select(better, score[r], best[r]);
      block[r] = select(better, splat(int32_t(j)), block[r]);
    }
  }
  for (int r = 0; r < kSearched; ++r) {
    float scores[kLanes];
    int32_t blocks[kLanes];
    store(scores, best[r]);
    store(blocks, block[r]);
    int lane = 0;
    for (int k = 1; k < kLanes; ++k) {
      const bool earlier = scores[k] == scores[lane] && blocks[k] < blocks[lane];
      if (scores[k] > scores[lane] || earlier) lane = k;
    }
    found[r] = blocks[lane] + lane;
  }
}

GOSSAMER_INLINE void put_bits(uint8_t* row, int64_t bit, uint32_t value) {  // into zeros
  const uint32_t word = value << (bit % 8);
  uint8_t* to = row + bit / 8;
  to[0] |= uint8_t(word);
  if (word >> 8) to[1] |= uint8_t(word >> 8);
  if (word >> 16) to[2] |= uint8_t(word >> 16);
}

// Books are read from the second-level cache: part by part, for a chunk of rows each.
static bool encode_product(const float* x, CodeSearch by, uint8_t* codes, int64_t rows, int64_t chunk_rows,
                           int64_t* bad, int threads) {
  const int64_t cols = by.cols, parts = ceil_div(cols, by.width), bytes = ceil_div(parts * by.bits, 8);
  const float limit = 1099511627776.0f;  // 2^40: scores stay finite
  Buffer<float> scratch(threads * 8 * kSearched * by.width);
  if (!scratch.data) return false;
  const int64_t chunks = ceil_div(rows, chunk_rows), pieces = min_of<int64_t>(chunks, int64_t(threads) * 8);
  parallel_for(pieces, 1, threads, [&](int64_t first_piece, int64_t last_piece) {
    float* xs = scratch.data + first_piece * kSearched * by.width;
    for (int64_t chunk = chunks * first_piece / pieces; chunk < chunks * last_piece / pieces; ++chunk) {
      const int64_t start = chunk * chunk_rows, end = min_of(rows, start + chunk_rows);
      bad[chunk] = first_bad_row(x, start, end, cols);
      std::memset(codes + start * bytes, 0, size_t((end - start) * bytes));
      for (int64_t p = 0; p < parts; ++p) {
        const int64_t column = p * by.width, width = min_of(by.width, cols - column);
        for (int64_t i = start; i < end; i += kSearched) {
          const int64_t count = min_of<int64_t>(kSearched, end - i);
          bool nonzero[kSearched] = {};
          int32_t found[kSearched];
          for (int64_t r = 0; r < kSearched; ++r) {
            const float* row = x + (i + min_of(r, count - 1)) * cols + column;
            for (int64_t k = 0; k < width; ++k) {
              const float v = row[k] * by.inverse_scale[p];
              nonzero[r] |= row[k] != 0.0f;
              xs[r * width + k] = v < -limit ? -limit : v > limit ? limit : v;
            }
          }
          best_codes(xs, by.books + column * by.codes, by.start + p * by.codes, width, by.codes, found);
          for (int64_t r = 0; r < count; ++r) {
            if (nonzero[r]) put_bits(codes + (i + r) * bytes, p * by.bits, uint32_t(found[r]));
          }
        }
      }
    }
  });
  return true;
}
