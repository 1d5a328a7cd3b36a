// Affine quantisers in floating point (ops/fake_quantize.py): q = clamp(nearest(x / scale) + zero, 0, top), and back to
// scale * (q - zero). Integers up to 2^21 are exact in float, so bits are those of the reference.

constexpr float kFarOut = 2097152.0f;  // 2^21: codes have at most eight bits, what is beyond is outside anyway

// One bit per element, rows in whole words of sixteen.
GOSSAMER_INLINE int64_t bit_bytes(int64_t cols) { return ceil_div(cols, kLanes) * 2; }

struct QuantizerRow {
  const Quantizer& of;
  float factor;
  bool is_kept;

  // Sixteen elements from column c on; `inside` has the lanes through which a gradient passes.
  GOSSAMER_INLINED f32x16 operator()(f32x16 x, int64_t c, int64_t count, i32x16* inside) const {
    x = x * factor;
    if (is_kept) {
      *inside = splat(-1);
      return x;
    }
    const f32x16 inverse = of.per_column ? load_part(of.inverse + c, count) : splat(of.inverse[0]);
    const f32x16 scale = of.per_column ? load_part(of.scale + c, count) : splat(of.scale[0]);
    const f32x16 steps = maximum(minimum(x * inverse, splat(kFarOut)), splat(-kFarOut));
    const f32x16 code = to_float(nearest_int(steps)) + of.zero;
    const f32x16 low = splat(0.0f), high = splat(of.top);
    const i32x16 is_nan = x != x;  // passes, so that a divergence stays visible
    if (of.rule == kStraightThrough) *inside = splat(-1);
    else if (of.rule == kClipped) *inside = ((code >= low) & (high >= code)) | is_nan;
    else *inside = ((code > low) & (high > code)) | is_nan;
    return select(is_nan, x, (maximum(minimum(code, high), low) - of.zero) * scale);
  }
};

static void fake_quantize(const float* x, Quantizer of, float* out, uint8_t* bits, int64_t rows, int64_t cols,
                          int threads) {
  const bool streaming = cols % kLanes == 0 && streams(out, rows * cols);
  parallel_for(rows, 1 + 16384 / (cols + 1), threads, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const QuantizerRow quantizer = {of, of.row ? of.row[r] : 1.0f, of.keep && of.keep[r]};
      uint8_t* row_bits = bits ? bits + r * bit_bytes(cols) : nullptr;
      for_vectors(cols, [&](int64_t c, int64_t count) GOSSAMER_INLINED {
        i32x16 inside;
        prefetch_rows(x + r * cols + c, cols, kRowsAhead);
        put_part(out + r * cols + c, quantizer(load_part(x + r * cols + c, count), c, count, &inside), count,
                 streaming);
        const uint16_t word = uint16_t(lane_bits(inside) & (count >= kLanes ? 0xffff : (1u << count) - 1));
        if (row_bits) std::memcpy(row_bits + c / 8, &word, 2);
      });
    }
    stream_fence();
  });
}

// dout times row[i] (null: 1) where the bit is set (null: everywhere), else 0.
static void fake_quantize_backward(const float* dout, const float* row, const uint8_t* bits, float* dx, int64_t rows,
                                   int64_t cols, int threads) {
  const bool streaming = cols % kLanes == 0 && streams(dx, rows * cols);
  parallel_for(rows, 1 + 16384 / (cols + 1), threads, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      for_vectors(cols, [&](int64_t c, int64_t count) GOSSAMER_INLINED {
        uint16_t word = 0xffff;
        if (bits) std::memcpy(&word, bits + r * bit_bytes(cols) + c / 8, 2);
        prefetch_rows(dout + r * cols + c, cols, kRowsAhead);
        const f32x16 g = load_part(dout + r * cols + c, count) * (row ? row[r] : 1.0f);
        put_part(dx + r * cols + c, select(bits_to_lanes(word), g, splat(0.0f)), count, streaming);
      });
    stream_fence();
  });
}

// Counts of the elements below `low`, of those in each of `bins` equal parts of [low, low + bins / per_unit), and of
// those above, of rows times row[i]; NaN counts nowhere, rows with keep[i] set do not. False: no memory left for
// scratch.
static bool histogram(const float* x, const float* row, const uint8_t* keep, float low, float per_unit, int64_t bins,
                      int64_t* counts, int64_t rows, int64_t cols, int threads) {
  bool enough = true;
  parallel_for(rows, 1 + 65536 / (cols + 1), threads, [&](int64_t first, int64_t last) {
    Buffer<int64_t> own(bins + 2);
    if (!own.data) {
      __atomic_store_n(&enough, false, __ATOMIC_RELAXED);
      return;
    }
    const f32x16 top = splat(float(bins));
    for (int64_t r = first; r < last; ++r) {
      if (keep && keep[r]) continue;
      for_vectors(cols, [&](int64_t c, int64_t count) GOSSAMER_INLINED {
        const f32x16 v = load_part(x + r * cols + c, count, __builtin_nanf("")) * (row ? row[r] : 1.0f);
        const f32x16 place = maximum(minimum((v - low) * per_unit, top), splat(-1.0f));
        int32_t at[kLanes];
        store(at, truncate(place + 1.0f));  // 0: below, bins + 1: above
        const uint16_t missing = lane_bits(v != v);
        for (int k = 0; k < kLanes; ++k)
          if (!(missing >> k & 1)) ++own.data[at[k]];
      });
    }
    for (int64_t b = 0; b < bins + 2; ++b)
      if (own.data[b]) __atomic_fetch_add(counts + b, own.data[b], __ATOMIC_RELAXED);
  });
  return enough;
}
