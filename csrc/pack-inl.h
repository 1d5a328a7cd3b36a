// Blocks of few-bit codes. Per block: zero <= min x, range >= max x - zero, code = min(floor((x - zero) * inv + u),
// top) with top = 2^bits - 1 and inv = top / range. Element e of a block occupies bits (e * bits) mod 8 upward of byte
// e * bits / 8; every block starts on a byte. With levels that are not uniform, position() first maps each bin between
// two of them to length one, and the decoder looks the level up.

// Levels in units of a uniform step, and 1 / (the gap above each).
struct Bins {
  float level[256], inverse[256];
  bool uniform;
};
GOSSAMER_INLINE void fill_bins(Bins* b, const float* levels, int bits) {
  b->uniform = !levels;
  for (int k = 0; levels && k < 1 << bits; ++k) {
    b->level[k] = levels[k];
    b->inverse[k] = k + 1 < 1 << bits ? 1.0f / (levels[k + 1] - levels[k]) : 0.0f;
  }
}

GOSSAMER_INLINE float bf16_down(float x) {  // the largest bfloat16 that is not above x
  uint32_t u = bits_of<uint32_t>(x);
  uint32_t kept = u & 0xffff0000u;
  if ((u & 0x80000000u) && u != kept) kept += 0x10000u;
  return bits_of<float>((kept & 0x7f800000u) == 0x7f800000u ? (kept & 0x80000000u) | 0x7f7f0000u : kept);
}
GOSSAMER_INLINE float bf16_up(float x) { return -bf16_down(-x); }

struct BlockRange {
  float zero, range;
};

GOSSAMER_INLINE BlockRange block_range(const float* x, int64_t n, bool bf16_meta) {
  f32x16 low = splat(__builtin_inff()), high = splat(-__builtin_inff());
  i32x16 magnitude = splat(0);
  int64_t c = 0;
  for (; c + kLanes <= n; c += kLanes) {
    const f32x16 v = load<f32x16>(x + c);
    low = minimum(v, low);
    high = maximum(v, high);
    magnitude = maximum(magnitude, bits_of<i32x16>(v) & 0x7fffffff);
  }
  int32_t top = max_lanes(magnitude);
  float least = min_lanes(low), most = max_lanes(high);
  for (; c < n; ++c) {
    least = min_of(least, x[c]), most = max_of(most, x[c]);
    top = max_of(top, bits_of<int32_t>(x[c]) & 0x7fffffff);
  }
  if (top >= 0x7f800000) return {__builtin_nanf(""), 0.0f};  // not finite: the whole block decodes to NaN
  const float largest = 3.38953139e38f;                      // the largest bfloat16
  const float zero = bf16_meta ? bf16_down(least) : least;
  float spread = min_of(most - zero, largest);
  if (spread < kTiny) spread = 0;
  return {zero, bf16_meta ? bf16_up(spread) : spread};
}

// table[q] per lane.
template <int Bits>
GOSSAMER_INLINE f32x16 entries_of(const float* table, i32x16 q) {
  if (Bits <= 4) return lookup16(table, q);
  int32_t codes[kLanes];
  float found[kLanes];
  store(codes, q);
  for (int k = 0; k < kLanes; ++k) found[k] = table[codes[k]];
  return load<f32x16>(found);
}

// Which bin h lies in, and how far: bin j from level j to the next has length one.
template <int Bits>
GOSSAMER_INLINE f32x16 position(f32x16 h, const Bins& b) {
  i32x16 j = splat(0);
  for (int k = 1; k < (1 << Bits) - 1; ++k) j = j - (h >= splat(b.level[k]));  // true is -1
  return (h - entries_of<Bits>(b.level, j)) * entries_of<Bits>(b.inverse, j) + to_float(j);
}

template <int Bits, bool Stochastic, bool Uniform>
GOSSAMER_INLINE i32x16 block_codes(f32x16 x, BlockRange r, float inverse, const Bins& b, Key key, uint64_t index) {
  const f32x16 h = (x - r.zero) * inverse;
  const f32x16 t = (Uniform ? h : position<Bits>(h, b)) + (Stochastic ? random_unit(key, index) : splat(0.5f));
  return truncate(minimum(maximum(t, splat(0.0f)), splat(float((1 << Bits) - 1))));
}

// Sixty-four codes, one a byte, into 8 * bits bytes.
template <int Bits>
GOSSAMER_INLINE void squeeze64(const uint8_t* codes, uint8_t* out) {
  if (Bits == 8) {
    std::memcpy(out, codes, 64);
  } else if (Bits == 1) {
    for (int k = 0; k < 8; ++k) {
      uint64_t v;
      std::memcpy(&v, codes + 8 * k, 8);
      out[k] = uint8_t((v * 0x0102040810204080ull) >> 56);
    }
  } else {
    u32x16 v = load<u32x16>(codes);
    if (Bits == 2) {
      v = (v | (v >> 6) | (v >> 12) | (v >> 18)) & 0xffu;
      narrow_bytes(out, bits_of<i32x16>(v));
    } else {
      v = v | (v >> 4);
      v = (v & 0xffu) | ((v >> 8) & 0xff00u);
      uint16_t pairs[kLanes];
      narrow(pairs, bits_of<i32x16>(v));
      std::memcpy(out, pairs, sizeof pairs);
    }
  }
}

// Sixteen codes from 2 * bits bytes.
template <int Bits>
GOSSAMER_INLINE i32x16 spread16(const uint8_t* in) {
  static const uint32_t shift[4][kLanes] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                            {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30},
                                            {0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28}};
  if (Bits == 8) return widen(in);
  uint32_t low = 0, high = 0;
  std::memcpy(&low, in, Bits == 1 ? 2 : 4);
  if (Bits == 4) std::memcpy(&high, in + 4, 4);
  const i32x16 first = bits_of<i32x16>(lane_numbers()) < splat(8);
  const u32x16 words = Bits == 4 ? select(first, splat(low), splat(high)) : splat(low);
  return bits_of<i32x16>((words >> load<u32x16>(shift[Bits / 2])) & ((1u << Bits) - 1));
}

template <int Bits, bool Stochastic, bool Uniform>
static void pack_block_as(const float* x, int64_t n, BlockRange r, float inverse, const Bins& b, uint8_t* out, Key key,
                          uint64_t index) {
  uint8_t codes[64];
  for (int64_t c = 0; c < n; c += 64) {
    const int64_t count = min_of<int64_t>(64, n - c);
    float tail[64];
    const float* in = x + c;
    if (count < 64) {
      for (int k = 0; k < 64; ++k) tail[k] = r.zero;
      std::memcpy(tail, in, size_t(count) * sizeof(float));
      in = tail;
    }
    for (int k = 0; k < 64; k += kLanes) {
      const f32x16 v = load<f32x16>(in + k);
      narrow_bytes(codes + k, block_codes<Bits, Stochastic, Uniform>(v, r, inverse, b, key, index + uint64_t(c + k)));
    }
    if (count == 64) {
      squeeze64<Bits>(codes, out + c * Bits / 8);
    } else {
      uint8_t squeezed[64];
      std::memset(codes + count, 0, size_t(64 - count));
      squeeze64<Bits>(codes, squeezed);
      std::memcpy(out + c * Bits / 8, squeezed, size_t(ceil_div(count * Bits, 8)));
    }
  }
}

// What one call rounds with.
struct Rounding {
  Bins bins;
  Key key;
  bool stochastic;
};

// n elements of one block, whose first has the given index in the tensor.
template <int Bits>
GOSSAMER_INLINE void pack_block(const float* x, int64_t n, BlockRange r, const Rounding& how, uint8_t* out,
                                uint64_t index) {
  const float top = float((1 << Bits) - 1), inverse = r.range > 0 ? top / r.range : 0.0f;
  if (r.zero != r.zero) std::memset(out, 0, size_t(ceil_div(n * Bits, 8)));
  else if (how.stochastic && how.bins.uniform)
    pack_block_as<Bits, true, true>(x, n, r, inverse, how.bins, out, how.key, index);
  else if (how.stochastic) pack_block_as<Bits, true, false>(x, n, r, inverse, how.bins, out, how.key, index);
  else if (how.bins.uniform) pack_block_as<Bits, false, true>(x, n, r, inverse, how.bins, out, how.key, index);
  else pack_block_as<Bits, false, false>(x, n, r, inverse, how.bins, out, how.key, index);
}

// What the codes of one block stand for: of few bits a table of all values.
template <int Bits, bool Uniform>
struct Values {
  const Bins& bins;
  BlockRange range;
  float step, table[kLanes];
  Values(const Bins& b, BlockRange r) : bins(b), range(r), step(r.range / float((1 << Bits) - 1)) {
    if (Bits <= 4) store(table, levels(bits_of<i32x16>(lane_numbers()) & ((1 << Bits) - 1)) * step + r.zero);
  }
  f32x16 levels(i32x16 q) const { return Uniform ? to_float(q) : entries_of<Bits>(bins.level, q); }
  f32x16 operator()(i32x16 q) const { return Bits <= 4 ? lookup16(table, q) : levels(q) * step + range.zero; }
};

// Elements first .. first + n - 1 of one block, whose codes begin at `in`.
template <int Bits, bool Uniform>
static void unpack_span_as(const uint8_t* in, int64_t first, int64_t n, BlockRange r, const Bins& b, float* out,
                           bool streaming) {
  const Values<Bits, Uniform> values(b, r);
  const int64_t end = first + n;
  for (int64_t c = first / kLanes * kLanes; c < end; c += kLanes) {  // pieces that begin on whole bytes
    const uint8_t* from = in + c * Bits / 8;
    if (c >= first && c + kLanes <= end) {
      put(out + (c - first), values(spread16<Bits>(from)), streaming);
      continue;
    }
    const int64_t skip = max_of<int64_t>(0, first - c), stop = min_of<int64_t>(kLanes, end - c);
    uint8_t part[2 * Bits] = {};
    float found[kLanes];
    std::memcpy(part, from, size_t(ceil_div(stop * Bits, 8)));
    store(found, values(spread16<Bits>(part)));
    std::memcpy(out + (c + skip - first), found + skip, size_t(stop - skip) * sizeof(float));
  }
}
template <int Bits>
GOSSAMER_INLINE void unpack_span(const uint8_t* in, int64_t first, int64_t n, BlockRange r, const Bins& b, float* out,
                                 bool streaming = false) {
  if (b.uniform) unpack_span_as<Bits, true>(in, first, n, r, b, out, streaming);
  else unpack_span_as<Bits, false>(in, first, n, r, b, out, streaming);
}

GOSSAMER_INLINE void write_meta(void* p, int64_t k, float value, bool bf16) {
  if (bf16) static_cast<uint16_t*>(p)[k] = to_bf16(value);
  else static_cast<float*>(p)[k] = value;
}
GOSSAMER_INLINE float read_meta(const void* p, int64_t k, bool bf16) {
  return bf16 ? load_scalar(static_cast<const uint16_t*>(p) + k) : static_cast<const float*>(p)[k];
}

template <int Bits>
static void pack_blocks(const float* x, Blocks b, uint8_t* codes, void* zero, void* range, const Rounding& how,
                        int threads) {
  const int64_t count = ceil_div(b.numel, b.block), bytes = ceil_div(b.block * Bits, 8);
  parallel_for(count, max_of<int64_t>(1, 16384 / b.block), threads, [&](int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) {
      const int64_t start = k * b.block, n = min_of(b.block, b.numel - start);
      const int64_t ahead = start + kRowsAhead * b.block;
      if (ahead < b.numel) prefetch_bytes(x + ahead, min_of(b.block, b.numel - ahead) * int64_t(sizeof(float)));
      const BlockRange r = block_range(x + start, n, b.bf16_meta);
      write_meta(zero, k, r.zero, b.bf16_meta);
      write_meta(range, k, r.range, b.bf16_meta);
      pack_block<Bits>(x + start, n, r, how, codes + k * bytes, uint64_t(start));
    }
  });
}

// Elements first .. first + n - 1 of the tensor.
template <int Bits>
GOSSAMER_INLINE void unpack_range(const uint8_t* codes, const void* zero, const void* range, const Blocks& b,
                                  const Bins& bins, int64_t first, int64_t n, float* out, bool streaming = false) {
  const int64_t bytes = ceil_div(b.block * Bits, 8);
  for (int64_t at = first; at < first + n;) {
    const int64_t k = at / b.block, inside = at - k * b.block, count = min_of(b.block - inside, first + n - at);
    const BlockRange r = {read_meta(zero, k, b.bf16_meta), read_meta(range, k, b.bf16_meta)};
    unpack_span<Bits>(codes + k * bytes, inside, count, r, bins, out + (at - first), streaming);
    at += count;
  }
}

// f with the number of bits as a compile-time constant.
template <int B>
struct BitsTag {
  static constexpr int value = B;
};
template <typename F>
GOSSAMER_INLINE void by_bits(int bits, const F& f) {
  if (bits == 1) f(BitsTag<1>());
  else if (bits == 2) f(BitsTag<2>());
  else if (bits == 4) f(BitsTag<4>());
  else f(BitsTag<8>());
}

GOSSAMER_INLINE void fill_rounding(Rounding* how, const float* levels, int bits, Noise noise) {
  fill_bins(&how->bins, levels, bits);
  how->key = key_of(noise.seed);
  how->stochastic = noise.on;
}

static void pack(const float* x, Blocks b, uint8_t* codes, void* zero, void* range, Noise noise, int threads) {
  Rounding how;
  fill_rounding(&how, b.levels, b.bits, noise);
  by_bits(b.bits, [&](auto tag) { pack_blocks<decltype(tag)::value>(x, b, codes, zero, range, how, threads); });
}

static void unpack(const uint8_t* codes, const void* zero, const void* range, Blocks b, float* out, int threads) {
  Bins bins;
  fill_bins(&bins, b.levels, b.bits);
  const bool streaming = b.block % kLanes == 0 && streams(out, b.numel);
  const int64_t count = ceil_div(b.numel, b.block);
  parallel_for(count, max_of<int64_t>(1, 16384 / b.block), threads, [&](int64_t first, int64_t last) {
    const int64_t start = first * b.block, n = min_of(last * b.block, b.numel) - start;
    by_bits(b.bits, [&](auto tag) {
      unpack_range<decltype(tag)::value>(codes, zero, range, b, bins, start, n, out + start, streaming);
    });
    stream_fence();
  });
}
