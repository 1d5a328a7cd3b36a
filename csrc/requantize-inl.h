// How integer sums become codes of another scale, or floats (ops/requantize.py): t = sum * mult (* row) (+ shift)
// (+ add), times slope where it is negative; then the code clamp(nearest(t) + zero, 0, top). Products and sums round
// one by one, so that plain PyTorch gives the same bits.

GOSSAMER_INLINE int64_t code_bytes(int64_t cols, int bits) { return bits == 4 ? ceil_div(cols, 2) : cols; }

// Codes of sixteen t. As the ends of the range are integers, t can be clamped before it is rounded; ReLU is one end.
struct Coder {
  f32x16 low, high;
  int32_t offset;
  float slope;
  explicit Coder(const Requantize& of)
      : low(splat(of.slope == 0.0f ? 0.0f : float(-of.zero))),
        high(splat(float(of.top - of.zero))),
        offset(of.zero - bits_of<int32_t>(kMagic)),
        slope(of.slope) {}
  static constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it leaves the rounded integer in the low bits

  GOSSAMER_INLINED i32x16 operator()(f32x16 t) const {
    if (slope != 0.0f && slope != 1.0f) t = select(t < splat(0.0f), t * slope, t);
    return bits_of<i32x16>(maximum(minimum(t, high), low) + kMagic) + offset;
  }
};
GOSSAMER_INLINE f32x16 sloped(f32x16 t, float slope) {
  return slope == 1.0f ? t : slope == 0.0f ? maximum(t, splat(0.0f)) : select(t < splat(0.0f), t * slope, t);
}

// 64 codes as bytes, two to a byte.
GOSSAMER_INLINE void pack_pairs(const uint8_t* bytes, uint8_t* to) {
  uint16_t pairs[32];
  std::memcpy(pairs, bytes, 64);
  for (int k = 0; k < 32; ++k) to[k] = uint8_t(pairs[k] | pairs[k] >> 4);
}

// One row of results, sixteen columns at a time, or sixty-four.
struct RequantizedRow {
  const Requantize& of;
  const Coder& coder;
  int64_t i, cols;
  bool streaming;

  // t before the slope, of a sum times its factor.
  GOSSAMER_INLINED f32x16 shifted(f32x16 t, int64_t c, int64_t count) const {
    if (of.row) t = t * of.row[i];
    if (of.shift) t = t + load_part(of.shift + c, count);
    if (of.add) t = t + load_part(of.add + i * cols + c, count);
    return t;
  }
  GOSSAMER_INLINED void put(f32x16 t, int64_t c, int64_t count) const {
    t = shifted(t, c, count);
    if (of.bits == 32) return put_part(of.floats + i * cols + c, sloped(t, of.slope), count, streaming);
    uint8_t bytes[kLanes];
    uint8_t* row = of.codes + i * code_bytes(cols, of.bits);
    if (of.bits == 8 && count >= kLanes) return narrow_bytes(row + c, coder(t));
    narrow_bytes(bytes, coder(t));
    if (of.bits == 8) {
      std::memcpy(row + c, bytes, size_t(count));
      return;
    }
    uint8_t pairs[kLanes / 2];
    for (int k = 0; k < kLanes / 2; ++k) pairs[k] = uint8_t(bytes[2 * k] | bytes[2 * k + 1] << 4);
    std::memcpy(row + c / 2, pairs, size_t(ceil_div(min_of<int64_t>(count, kLanes), 2)));
  }
  // Columns c .. c + 63 at once; t(k) gives the sixteen from c + 16 k on.
  template <typename F>
  GOSSAMER_INLINED void put64(int64_t c, const F& t) const {
    if (of.bits == 32) {
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) put(t(k), c + k * kLanes, kLanes);
      return;
    }
    i32x16 q[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) q[k] = coder(shifted(t(k), c + k * kLanes, kLanes));
    uint8_t* row = of.codes + i * code_bytes(cols, of.bits);
    uint8_t bytes[64];
    narrow64_unsigned(of.bits == 8 ? row + c : bytes, q[0], q[1], q[2], q[3]);
    if (of.bits == 4) pack_pairs(bytes, row + c / 2);
  }
};
// f(k) gives columns c + 16 k .. of a row, f(c, k): for all columns of a row, sixty-four at a time where they are
// there.
template <typename F>
GOSSAMER_INLINE void put_row(const RequantizedRow& row, int64_t first, int64_t cols, const F& t) {
  int64_t c = 0;
  for (; c + 64 <= cols; c += 64)
    row.put64(first + c, [&](int k) GOSSAMER_INLINED { return t(c + k * kLanes, kLanes); });
  for (; c < cols; c += kLanes) row.put(t(c, cols - c), first + c, cols - c);
}
GOSSAMER_INLINE bool streams(const Requantize& of, int64_t rows, int64_t cols) {
  return of.bits == 32 && cols % kLanes == 0 && streams(of.floats, rows * cols);
}

// Codes of floats, [rows, in]; further columns hold the zero point. `bad` becomes the first row that is not finite, if
// there is one below it; such numbers count as 0.
static void quantize_affine(const float* x, int64_t in, const float* mult, Requantize to, int64_t* bad, int64_t rows,
                            int64_t cols, int threads) {
  const Coder coder(to);
  parallel_for(rows, 1 + 16384 / (cols + 1), threads, [&](int64_t first, int64_t last) {
    i32x16 magnitude = splat(0);
    for (int64_t i = first; i < last; ++i) {
      const RequantizedRow row = {to, coder, i, cols, false};
      put_row(row, 0, cols, [&](int64_t c, int64_t count) GOSSAMER_INLINED {
        prefetch_rows(x + i * in + c, in, kRowsAhead);
        const f32x16 v = load_part(x + i * in + min_of(c, in), max_of<int64_t>(0, min_of(count, in - c)));
        const i32x16 size = bits_of<i32x16>(v) & 0x7fffffff;
        magnitude = maximum(magnitude, size);
        return select(size < splat(0x7f800000), v, splat(0.0f)) * load_part(mult + c, count);
      });
    }
    if (max_lanes(magnitude) < 0x7f800000) return;
    int64_t found = first;
    for (; found < last; ++found) {
      bool is_bad = false;
      for (int64_t c = 0; c < in; ++c) is_bad |= (bits_of<int32_t>(x[found * in + c]) & 0x7fffffff) >= 0x7f800000;
      if (is_bad) break;
    }
    int64_t before = __atomic_load_n(bad, __ATOMIC_RELAXED);
    while (found < before &&
           !__atomic_compare_exchange_n(bad, &before, found, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
  });
}

// Two codes of each byte, one to a byte.
GOSSAMER_INLINE void unpack_codes(const uint8_t* from, int64_t bytes, uint8_t* to) {
  uint16_t* pairs = reinterpret_cast<uint16_t*>(to);
  for (int64_t b = 0; b < bytes; ++b) pairs[b] = uint16_t((from[b] | from[b] << 4) & 0x0f0f);
}
// Sixteen codes from column c on as integers; c is even where codes have four bits.
GOSSAMER_INLINE i32x16 load_codes(const uint8_t* row, int bits, int64_t c, int64_t count) {
  uint8_t bytes[kLanes] = {};
  const int64_t n = min_of<int64_t>(count, kLanes);
  if (bits == 8) {
    if (n == kLanes) return widen(row + c);
    std::memcpy(bytes, row + c, size_t(n));
  } else {
    for (int64_t k = 0; k < n; ++k) bytes[k] = uint8_t(row[(c + k) / 2] >> (4 * ((c + k) & 1)) & 15);
  }
  return widen(bytes);
}
// Codes as floats, or as codes of another scale: t = (code - zero) * mult.
static void requantize(const uint8_t* x, int bits, int64_t stride, int32_t zero, const float* mult, Requantize to,
                       int64_t rows, int64_t cols, int threads) {
  const Coder coder(to);
  parallel_for(rows, 1 + 16384 / (cols + 1), threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const RequantizedRow row = {to, coder, i, cols, streams(to, rows, cols)};
      put_row(row, 0, cols, [&](int64_t c, int64_t count) GOSSAMER_INLINED {
        return to_float(load_codes(x + i * stride, bits, c, count) - zero) * load_part(mult + c, count);
      });
    }
    stream_fence();
  });
}
