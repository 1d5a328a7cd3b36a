// Rows of compressed features, gathered and decoded in one pass (ops/gather_codes.py). A row of codes is read once, the
// decoded row is only written; rows further on are prefetched. Negative ids leave their row of the output as it is.

// What 16 codes stand for: entry `code` of a table for all columns, or of the column's own. Tables are [2^bits, cols or
// 1], so that the entries of one code for neighbouring columns are a vector.
template <int Bits, bool PerColumn>
struct TableEntries {
  const float* table;
  int64_t cols;
  float few[kLanes];  // of a table for all columns
  TableEntries(const float* t, int64_t c) : table(t), cols(c) {
    for (int k = 0; !PerColumn && Bits <= 4 && k < kLanes; ++k) few[k] = t[k & ((1 << Bits) - 1)];
  }
  // Of columns c .. c + count - 1; the others of sixteen are anything.
  GOSSAMER_INLINED f32x16 operator()(const uint8_t* codes, int64_t c, int64_t count) const {
    if constexpr (Bits == 1) {
      uint16_t sixteen;
      std::memcpy(&sixteen, codes, sizeof sixteen);
      const i32x16 set = bits_to_lanes(sixteen);
      return PerColumn ? select(set, entry(1, c, count), entry(0, c, count))
                       : select(set, splat(few[1]), splat(few[0]));
    } else if constexpr (PerColumn && Bits <= 4) {
      return choose<Bits>(spread16<Bits>(codes), 0, c, count);
    } else if constexpr (Bits <= 4) {
      return lookup16(few, spread16<Bits>(codes));
    } else {
      const i32x16 q = spread16<Bits>(codes);
      if (!PerColumn) return lookup(table, q);
      const i32x16 lane = minimum(bits_of<i32x16>(lane_numbers()), splat(int32_t(count - 1)));
      return lookup(table + c, q * int32_t(cols) + lane);
    }
  }
  GOSSAMER_INLINED f32x16 entry(int code, int64_t c, int64_t count) const {
    return load_part(table + code * cols + c, count);
  }
  // The entry whose lowest B bits are those of q and whose others are those of `base`: halves are chosen bit by bit.
  template <int B>
  GOSSAMER_INLINED f32x16 choose(i32x16 q, int base, int64_t c, int64_t count) const {
    if constexpr (B == 0) {
      return entry(base, c, count);
    } else {
      const i32x16 set = (q & (1 << (B - 1))) != splat(0);
      return select(set, choose<B - 1>(q, base + (1 << (B - 1)), c, count), choose<B - 1>(q, base, c, count));
    }
  }
};

// The row of codes of id k, if there is one: codes may be null where all rows are left out.
GOSSAMER_INLINE void prefetch_codes(const uint8_t* codes, int64_t bytes, const int64_t* ids, int64_t k, int64_t count) {
  if (k < count && ids[k] >= 0) prefetch_bytes(codes + ids[k] * bytes, bytes);
}

// The first `count` of sixteen elements.
template <typename Out>
GOSSAMER_INLINE void put_first(Out* to, f32x16 v, int64_t count) {
  Out sixteen[kLanes];
  put(sixteen, v, false);
  std::memcpy(to, sixteen, size_t(count) * sizeof(Out));
}

template <int Bits, bool PerColumn, typename Out>
static void gather_scalar_rows(const ScalarRows& from, const int64_t* ids, Out* out, int64_t count, int threads) {
  const int64_t cols = from.cols, bytes = ceil_div(cols * Bits, 8), whole = cols / kLanes * kLanes;
  const bool streaming = cols % kLanes == 0 && streams(out, count * cols);
  const TableEntries<Bits, PerColumn> entries(from.table, cols);
  parallel_for(count, max_of<int64_t>(1, 16384 / max_of<int64_t>(cols, 1)), threads, [&](int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) {
      prefetch_codes(from.codes, bytes, ids, k + kPrefetchRows, count);
      if (ids[k] < 0) continue;
      const uint8_t* row = from.codes + ids[k] * bytes;
      Out* to = out + k * cols;
      for (int64_t c = 0; c < whole; c += kLanes) put(to + c, entries(row + c * Bits / 8, c, kLanes), streaming);
      if (whole < cols) {
        uint8_t part[2 * Bits] = {};
        std::memcpy(part, row + whole * Bits / 8, size_t(ceil_div((cols - whole) * Bits, 8)));
        put_first(to + whole, entries(part, whole, cols - whole), cols - whole);
      }
    }
    stream_fence();
  });
}

template <typename Out>
static void gather_scalar(ScalarRows from, const int64_t* ids, Out* out, int64_t count, int threads) {
  by_bits(from.bits, [&](auto tag) {
    constexpr int Bits = decltype(tag)::value;
    if (from.per_column) gather_scalar_rows<Bits, true>(from, ids, out, count, threads);
    else gather_scalar_rows<Bits, false>(from, ids, out, count, threads);
  });
}

// `bits` <= 16 bits from position `bit` on of a buffer of `bytes` bytes, little-endian; nothing beyond it is read.
GOSSAMER_INLINE uint32_t bits_at(const uint8_t* from, int64_t bytes, int64_t bit, int bits) {
  uint32_t word = 0;
  int64_t byte = bit / 8;
  if (byte + 4 <= bytes) {
    std::memcpy(&word, from + byte, 4);
  } else if (bytes >= 4) {
    byte = bytes - 4;
    std::memcpy(&word, from + byte, 4);
  } else {
    byte = 0;
    std::memcpy(&word, from, size_t(bytes));
  }
  return (word >> (bit - 8 * byte)) & ((1u << bits) - 1);
}

// float16, finite, as float: its exponent is moved into place, and the product with 2^112 mends the bias, of numbers
// below the normal ones too.
GOSSAMER_INLINE f32x16 half_to_float(const uint16_t* from) {
  const u32x16 h = bits_of<u32x16>(widen(from));
  const f32x16 magnitude = bits_of<f32x16>((h & 0x7fffu) << 13) * 5192296858534827628530496329220096.0f;
  return bits_of<f32x16>(bits_of<u32x16>(magnitude) | ((h & 0x8000u) << 16));
}

template <typename Out>
static void gather_product(ProductRows from, const int64_t* ids, Out* out, int64_t count, int threads) {
  const int64_t cols = from.cols, parts = ceil_div(cols, from.width), bytes = ceil_div(parts * from.bits, 8);
  const int64_t all_bytes = from.rows * bytes;
  const bool streaming = cols % kLanes == 0 && from.width % kLanes == 0 && streams(out, count * cols);
  parallel_for(count, max_of<int64_t>(1, 16384 / max_of<int64_t>(cols, 1)), threads, [&](int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) {
      prefetch_codes(from.codes, bytes, ids, k + kPrefetchRows, count);
      if (ids[k] < 0) continue;
      Out* to = out + k * cols;
      for (int64_t p = 0; p < parts; ++p) {
        const int64_t start = p * from.width, width = min_of(from.width, cols - start);
        const int64_t code = bits_at(from.codes, all_bytes, ids[k] * bytes * 8 + p * from.bits, from.bits);
        const uint16_t* entry = from.books + start * from.length + min_of(code, from.length - 1) * width;
        int64_t c = 0;
        for (; c + kLanes <= width; c += kLanes)
          put(to + start + c, half_to_float(entry + c) * from.scale[p], streaming);
        if (c < width) {
          uint16_t rest[kLanes] = {};
          std::memcpy(rest, entry + c, size_t(width - c) * sizeof(uint16_t));
          put_first(to + start + c, half_to_float(rest) * from.scale[p], width - c);
        }
      }
    }
    stream_fence();
  });
}
