// Symmetric int8 codes with one scale per row: a = max|x|, scale = a / 127, code = round(x * 127 / a).

constexpr float kCodeMax = 127.0f;
constexpr float kTiny = 0x1p-100f;  // smaller spreads are flushed to zero, so that their inverses stay finite
constexpr int64_t kRowsAhead = 3;   // prefetched while this row is being quantised

GOSSAMER_INLINE float absmax(const float* x, int64_t n) {  // NaN if any element is not finite
  i32x16 top = splat(0);
  int64_t c = 0;
  for (; c + kLanes <= n; c += kLanes) top = maximum(top, load<i32x16>(x + c) & 0x7fffffff);
  int32_t best = max_lanes(top);  // magnitudes order like their bits, NaN and infinity above all numbers
  for (; c < n; ++c) best = max_of(best, bits_of<int32_t>(x[c]) & 0x7fffffff);
  return best >= 0x7f800000 ? __builtin_nanf("") : bits_of<float>(best);
}

// floor(t + u), u the fraction noise / 2^15, with t rounded to that many bits. |t| is at most 127 up to rounding: only
// the sum can leave the range of codes.
GOSSAMER_INLINE i32x16 round_up(f32x16 t, i32x16 noise) {
  const i32x16 top = splat(int32_t(kCodeMax)), q = (nearest_int(t * 32768.0f) + noise) >> 15;
  return maximum(minimum(q, top), splat(-int32_t(kCodeMax)));
}
template <bool Stochastic>
GOSSAMER_INLINE i32x16 round_codes(f32x16 t, Key key, uint64_t index) {
  return Stochastic ? round_up(t, random_halves(key, index)) : nearest_int(t);
}

template <bool Stochastic>
static void quantize_row(const float* x, int8_t* codes, float* scale, int64_t cols, Key key, uint64_t index) {
  const float a = absmax(x, cols);
  const bool tiny = a < kTiny;
  *scale = tiny ? 0.0f : a / kCodeMax;
  const float inverse = tiny || a != a ? 0.0f : kCodeMax / a;
  if (inverse == 0) {
    if (cols > 0) std::memset(codes, 0, size_t(cols));
    return;
  }
  const auto rounded = [&](int64_t at) {
    return round_codes<Stochastic>(load<f32x16>(x + at) * inverse, key, index + uint64_t(at));
  };
  int64_t c = 0;
  for (; Stochastic && index % 32 == 0 && c + 4 * kLanes <= cols; c += 4 * kLanes) {
    const auto by_half = [&](int v) GOSSAMER_INLINED {
      const f32x16 t = load<f32x16>(x + c + v * kLanes) * inverse;
      return round_up(t, random_half(key, (index + uint64_t(c)) / 32 + uint64_t(v / 2), v % 2));
    };
    narrow64(codes + c, by_half(0), by_half(1), by_half(2), by_half(3));
  }
  for (; c + 4 * kLanes <= cols; c += 4 * kLanes)
    narrow64(codes + c, rounded(c), rounded(c + kLanes), rounded(c + 2 * kLanes), rounded(c + 3 * kLanes));
  for (; c + kLanes <= cols; c += kLanes) narrow(codes + c, rounded(c));
  if (c < cols) {
    float tail[kLanes] = {};
    std::memcpy(tail, x + c, size_t(cols - c) * sizeof(float));
    const i32x16 q = round_codes<Stochastic>(load<f32x16>(tail) * inverse, key, index + uint64_t(c));
    int8_t last[kLanes];
    narrow(last, q);
    std::memcpy(codes + c, last, size_t(cols - c));
  }
}

static void quantize_rows(const float* x, int8_t* codes, float* scale, int64_t rows, int64_t cols, Noise noise,
                          int threads) {
  const Key key = key_of(noise.seed);
  parallel_for(rows, max_of<int64_t>(1, 16384 / max_of<int64_t>(cols, 1)), threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const uint64_t index = uint64_t(i) * uint64_t(cols);
      if (i + kRowsAhead < rows) prefetch_bytes(x + (i + kRowsAhead) * cols, cols * int64_t(sizeof(float)));
      if (noise.on) quantize_row<true>(x + i * cols, codes + i * cols, scale + i, cols, key, index);
      else quantize_row<false>(x + i * cols, codes + i * cols, scale + i, cols, key, index);
    }
  });
}

// The first `count` of sixteen codes, zero beyond.
GOSSAMER_INLINE i32x16 widen_part(const int8_t* from, int64_t count) {
  if (count >= kLanes) return widen(from);
  int8_t part[kLanes] = {};
  std::memcpy(part, from, size_t(max_of<int64_t>(count, 0)));
  return widen(part);
}

// The same as floats.
template <typename G>
GOSSAMER_INLINE f32x16 load_float_part(const G* from, int64_t count) {
  if (count >= kLanes) return load_float(from);
  G part[kLanes] = {};
  std::memcpy(part, from, size_t(count) * sizeof(G));
  return load_float(part);
}

// By head, the products of a row of codes with x - shift (null: 0).
GOSSAMER_INLINE void code_dots(const int8_t* codes, float scale, const float* x, const float* shift, int64_t heads,
                               int64_t width, float* out) {
  sum_lanes_of(heads, out, [&](int64_t h) GOSSAMER_INLINED {
    const int64_t first = h * width;
    f32x16 sum = splat(0.0f);
    for_vectors(width, [&](int64_t c, int64_t count) GOSSAMER_INLINED {
      f32x16 by = load_part(x + first + c, count);
      if (shift) by = by - load_part(shift + first + c, count);
      sum += load_float_part(codes + first + c, count) * by;
    });
    return sum;
  });
  for (int64_t h = 0; h < heads; ++h) out[h] *= scale;
}

// Writes finished rows of floats as codes.
struct RowWriter {
  RowCodes to;
  int64_t cols;
  Key key;
  RowWriter(RowCodes to, int64_t cols) : to(to), cols(cols), key(key_of(to.noise.seed)) {}
  // `scratch` has room for a row, and may be the row itself.
  void write(const float* row, float* scratch, int64_t i) const {
    if (to.factor) {
      for (int64_t c = 0; c < cols; ++c) scratch[c] = row[c] * to.factor[c];
      row = scratch;
    }
    const uint64_t index = uint64_t(to.first_row + i) * uint64_t(cols);
    if (to.noise.on) quantize_row<true>(row, to.codes + i * cols, to.scale + i, cols, key, index);
    else quantize_row<false>(row, to.codes + i * cols, to.scale + i, cols, key, index);
  }
  void write_zeros(int64_t i) const {
    if (cols > 0) std::memset(to.codes + i * cols, 0, size_t(cols));
    to.scale[i] = 0.0f;
  }
};

GOSSAMER_INLINE void dequantize_row(const int8_t* codes, float scale, float* out, int64_t cols, bool streaming) {
  int64_t c = 0;
  for (; c + kLanes <= cols; c += kLanes) put(out + c, load_float(codes + c) * scale, streaming);
  for (; c < cols; ++c) out[c] = float(codes[c]) * scale;
}

static void dequantize_rows(const int8_t* codes, const float* scale, float* out, int64_t rows, int64_t cols,
                            int threads) {
  const bool streaming = cols % kLanes == 0 && streams(out, rows * cols);
  parallel_for(rows, max_of<int64_t>(1, 16384 / max_of<int64_t>(cols, 1)), threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) dequantize_row(codes + i * cols, scale[i], out + i * cols, cols, streaming);
    stream_fence();
  });
}
