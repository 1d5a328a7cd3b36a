// Blocks of few-bit codes. Per block: zero <= min x, range >= max x - zero, code = min(floor((x - zero) * inv + u),
// top) with top = 2^bits - 1 and inv = top / range. Element e of a block occupies bits (e * bits) mod 8 upward of byte
// e * bits / 8; every block starts on a byte.

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

template <bool Stochastic>
GOSSAMER_INLINE i32x16 block_codes(f32x16 x, BlockRange r, float inverse, float top, Key key, uint64_t index) {
  const f32x16 t = (x - r.zero) * inverse + (Stochastic ? random_unit(key, index) : splat(0.5f));
  return truncate(minimum(maximum(t, splat(0.0f)), splat(top)));
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

template <int Bits>
GOSSAMER_INLINE void spread64(const uint8_t* in, uint8_t* codes) {
  if (Bits == 8) {
    std::memcpy(codes, in, 64);
  } else if (Bits == 1) {
    for (int k = 0; k < 8; ++k) {
      uint64_t v = (uint64_t(in[k]) * 0x0101010101010101ull) & 0x8040201008040201ull;
      v = ((v + 0x7f7f7f7f7f7f7f7full) >> 7) & 0x0101010101010101ull;  // every non-zero byte becomes 1
      std::memcpy(codes + 8 * k, &v, 8);
    }
  } else if (Bits == 2) {
    const u32x16 v = bits_of<u32x16>(widen(in));
    store(codes, (v | (v << 6) | (v << 12) | (v << 18)) & 0x03030303u);
  } else {
    uint16_t pairs[kLanes];
    std::memcpy(pairs, in, sizeof pairs);
    const u32x16 v = bits_of<u32x16>(widen(pairs));
    const u32x16 apart = (v & 0xffu) | ((v & 0xff00u) << 8);
    store(codes, (apart | (apart << 4)) & 0x0f0f0f0fu);
  }
}

template <int Bits, bool Stochastic>
static void pack_block(const float* x, int64_t n, BlockRange r, uint8_t* out, Key key, uint64_t index) {
  const float top = float((1 << Bits) - 1);
  const float inverse = r.range > 0 ? top / r.range : 0.0f;
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
      i32x16 q = block_codes<Stochastic>(load<f32x16>(in + k), r, inverse, top, key, index + uint64_t(c + k));
      narrow_bytes(codes + k, q);
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

template <int Bits>
static void unpack_block(const uint8_t* in, int64_t n, BlockRange r, float* out, bool streaming) {
  const float step = r.range / float((1 << Bits) - 1);
  uint8_t codes[64];
  for (int64_t c = 0; c < n; c += 64) {
    const int64_t count = min_of<int64_t>(64, n - c);
    float tail[64];
    uint8_t squeezed[64] = {};
    float* to = count == 64 ? out + c : tail;
    if (count < 64) std::memcpy(squeezed, in + c * Bits / 8, size_t(ceil_div(count * Bits, 8)));
    spread64<Bits>(count == 64 ? in + c * Bits / 8 : squeezed, codes);
    for (int k = 0; k < 64; k += kLanes) {
      const f32x16 q = to_float(widen(codes + k));
      put(to + k, q * step + r.zero, streaming && count == 64);
    }
    if (count < 64) std::memcpy(out + c, tail, size_t(count) * sizeof(float));
  }
}

GOSSAMER_INLINE void write_meta(void* p, int64_t k, float value, bool bf16) {
  if (bf16) static_cast<uint16_t*>(p)[k] = to_bf16(value);
  else static_cast<float*>(p)[k] = value;
}
GOSSAMER_INLINE float read_meta(const void* p, int64_t k, bool bf16) {
  return bf16 ? load_scalar(static_cast<const uint16_t*>(p) + k) : static_cast<const float*>(p)[k];
}

template <int Bits>
static void pack_blocks(const float* x, Blocks b, uint8_t* codes, void* zero, void* range, Noise noise, int threads) {
  const Key key = key_of(noise.seed);
  const int64_t count = ceil_div(b.numel, b.block), bytes = ceil_div(b.block * Bits, 8);
  parallel_for(count, max_of<int64_t>(1, 16384 / b.block), threads, [&](int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) {
      const int64_t start = k * b.block, n = min_of(b.block, b.numel - start);
      const int64_t ahead = start + kRowsAhead * b.block;
      if (ahead < b.numel) prefetch_bytes(x + ahead, min_of(b.block, b.numel - ahead) * int64_t(sizeof(float)));
      const BlockRange r = block_range(x + start, n, b.bf16_meta);
      write_meta(zero, k, r.zero, b.bf16_meta);
      write_meta(range, k, r.range, b.bf16_meta);
      if (r.zero != r.zero) std::memset(codes + k * bytes, 0, size_t(ceil_div(n * Bits, 8)));
      else if (noise.on) pack_block<Bits, true>(x + start, n, r, codes + k * bytes, key, uint64_t(start));
      else pack_block<Bits, false>(x + start, n, r, codes + k * bytes, key, uint64_t(start));
    }
  });
}

template <int Bits>
static void unpack_blocks(const uint8_t* codes, const void* zero, const void* range, Blocks b, float* out,
                          int threads) {
  const bool streaming = b.block % kLanes == 0 && streams(out, b.numel);
  const int64_t count = ceil_div(b.numel, b.block), bytes = ceil_div(b.block * Bits, 8);
  parallel_for(count, max_of<int64_t>(1, 16384 / b.block), threads, [&](int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) {
      const int64_t start = k * b.block;
      const BlockRange r = {read_meta(zero, k, b.bf16_meta), read_meta(range, k, b.bf16_meta)};
      unpack_block<Bits>(codes + k * bytes, min_of(b.block, b.numel - start), r, out + start, streaming);
    }
    stream_fence();
  });
}

static void pack(const float* x, Blocks b, uint8_t* codes, void* zero, void* range, Noise noise, int threads) {
  if (b.bits == 1) pack_blocks<1>(x, b, codes, zero, range, noise, threads);
  else if (b.bits == 2) pack_blocks<2>(x, b, codes, zero, range, noise, threads);
  else if (b.bits == 4) pack_blocks<4>(x, b, codes, zero, range, noise, threads);
  else pack_blocks<8>(x, b, codes, zero, range, noise, threads);
}

static void unpack(const uint8_t* codes, const void* zero, const void* range, Blocks b, float* out, int threads) {
  if (b.bits == 1) unpack_blocks<1>(codes, zero, range, b, out, threads);
  else if (b.bits == 2) unpack_blocks<2>(codes, zero, range, b, out, threads);
  else if (b.bits == 4) unpack_blocks<4>(codes, zero, range, b, out, threads);
  else unpack_blocks<8>(codes, zero, range, b, out, threads);
}
