// Backward of an epilogue from its saved codes (ops/saved_epilogue_backward.py), and its result decoded from them
// (ops/saved_epilogue.py). Codes are decoded a few rows at a time, into scratch that stays in the cache.

// Sixteen bits from any position; positions from `numel` on are not read.
GOSSAMER_INLINE uint16_t read_bits(const uint8_t* bits, int64_t index, int64_t numel) {
  const int64_t byte = index / 8, left = (numel + 7) / 8 - byte;
  uint32_t word = 0;
  if (left >= 4) std::memcpy(&word, bits + byte, 4);
  else
    for (int64_t k = 0; k < left; ++k) word |= uint32_t(bits[byte + k]) << (8 * k);
  return uint16_t(word >> (index % 8));
}

// How a call decodes a saved epilogue: tables of levels, activation and dropout.
struct Reading {
  Bins bins, plain;
  Tail tail;
};
GOSSAMER_INLINE void fill_reading(Reading* how, const SavedEpilogue& k) {
  fill_bins(&how->bins, k.blocks.levels, k.blocks.bits);
  fill_bins(&how->plain, nullptr, 8);
  how->tail = {drop_rule(k.p, k.seed), k.p > 0, k.slope};
}

// Elements start .. start + n - 1: normalised values, and the slopes where their codes are saved. Either may be null.
GOSSAMER_INLINE void read_epilogue(const SavedEpilogue& k, const Reading& how, int64_t start, int64_t n, float* hat,
                                   float* slopes) {
  if (hat)
    by_bits(k.blocks.bits, [&](auto tag) {
      unpack_range<decltype(tag)::value>(k.codes, k.zero, k.range, k.blocks, how.bins, start, n, hat);
    });
  if (k.slopes && slopes)
    by_bits(k.slope_bits, [&](auto tag) {
      unpack_span<decltype(tag)::value>(k.slopes, start, n, {k.low, k.width}, how.plain, slopes);
    });
}

// What the gradients of elements index .. index + 15 are multiplied by, given their slopes.
GOSSAMER_INLINE f32x16 factor16(const SavedEpilogue& k, const Reading& how, int64_t index, const float* slopes,
                                int64_t count) {
  f32x16 v = k.slopes ? load_part(slopes, count) : splat(1.0f);
  if (k.bits) v = select(bits_to_lanes(read_bits(k.bits, index, k.blocks.numel)), splat(k.passing), splat(k.slope));
  return how.tail.drops ? v * keep_scale(how.tail, index) : v;
}

GOSSAMER_INLINE f32x16 times_factor(f32x16 dout, f32x16 factor) {  // infinity times a clear bit is zero
  return select(factor != splat(0.0f), dout * factor, splat(0.0f));
}

// Scratch of one thread: kBlockRows rows of normalised values and of slopes.
struct EpilogueScratch {
  Buffer<float> both;
  float *hat, *slopes;
  explicit EpilogueScratch(int64_t cols) : both(2 * padded(kBlockRows * cols)) {
    hat = both.data;
    slopes = both.data + padded(kBlockRows * cols);
  }
};

// parallel_for, each part with scratch of its own; false if there was no memory for some.
template <typename F>
static bool with_scratch(int64_t n, int64_t grain, int64_t cols, int threads, const F& f) {
  bool enough = true;
  parallel_for(n, grain, threads, [&](int64_t first, int64_t last) {
    const EpilogueScratch s(cols);
    if (s.both.data) f(first, last, s);
    else enough = false;
  });
  return enough;
}

// Sums over rows of g, of g * x_hat and of x_hat, g the gradient of z. `partial` has room for two pairs of sums.
static bool saved_epilogue_sums(const float* dout, SavedEpilogue k, float* partial, float* sum_g, float* sum_gx,
                                float* sum_hat, int64_t rows, int64_t cols, int threads) {
  Reading how;
  fill_reading(&how, k);
  const int64_t chunks = ceil_div(rows, kChunkRows), stride = padded(cols);
  float* of_hat = partial + 2 * chunks * stride;
  const bool enough =
      with_scratch(chunks, 1, cols, threads, [&](int64_t first, int64_t last, const EpilogueScratch& s) {
        for (int64_t chunk = first; chunk < last; ++chunk) {
          float *sums = partial + chunk * 2 * stride, *hats = of_hat + chunk * 2 * stride;
          std::memset(sums, 0, size_t(2 * stride) * sizeof(float));
          std::memset(hats, 0, size_t(2 * stride) * sizeof(float));
          const int64_t begin = chunk * kChunkRows, end = min_of(rows, begin + kChunkRows);
          for (int64_t r = begin; r < end; r += kBlockRows) {
            const int64_t count = min_of(kBlockRows, end - r);
            read_epilogue(k, how, r * cols, count * cols, s.hat, s.slopes);
            for_vectors(cols, [&](int64_t c, int64_t part) GOSSAMER_INLINED {
              f32x16 a = splat(0.0f), b = a, h = a;
              for (int64_t row = 0; row < count; ++row) {
                const int64_t here = row * cols + c;
                prefetch_rows(dout + r * cols + here, cols, kBlockRows);
                const f32x16 g = times_factor(load_part(dout + r * cols + here, part),
                                              factor16(k, how, r * cols + here, s.slopes + here, part));
                const f32x16 hat = load_part(s.hat + here, part);
                a += g;
                b += g * hat;
                h += hat;
              }
              store(hats + c, load<f32x16>(hats + c) + h);
              store(sums + c, load<f32x16>(sums + c) + a);
              store(sums + stride + c, load<f32x16>(sums + stride + c) + b);
            });
          }
        }
      });
  if (enough) merge_sums(partial, rows, cols, sum_g, sum_gx);
  if (enough) merge_sums(of_hat, rows, cols, sum_hat, nullptr);
  return enough;
}

// dx = scale * g + by_hat * x_hat + constant; null: factor 1, no such term. dx may be dout.
static bool saved_epilogue_backward(const float* dout, SavedEpilogue k, const float* scale, const float* by_hat,
                                    const float* constant, float* dx, int64_t rows, int64_t cols, int threads) {
  Reading how;
  fill_reading(&how, k);
  const bool streaming = dx != dout && cols % kLanes == 0 && streams(dx, rows * cols);
  const int64_t blocks = ceil_div(rows, kBlockRows), grain = 1 + 2048 / (cols + 1);
  return with_scratch(blocks, grain, cols, threads, [&](int64_t first, int64_t last, const EpilogueScratch& s) {
    for (int64_t r = first * kBlockRows; r < min_of(rows, last * kBlockRows); r += kBlockRows) {
      const int64_t count = min_of(kBlockRows, rows - r);
      read_epilogue(k, how, r * cols, count * cols, by_hat ? s.hat : nullptr, s.slopes);
      for (int64_t row = 0; row < count; ++row)
        for_vectors(cols, [&](int64_t c, int64_t part) GOSSAMER_INLINED {
          const int64_t here = row * cols + c;
          prefetch_rows(dout + r * cols + here, cols, kBlockRows);
          f32x16 g = times_factor(load_part(dout + r * cols + here, part),
                                  factor16(k, how, r * cols + here, s.slopes + here, part));
          if (scale) g = g * load_part(scale + c, part);
          if (by_hat)
            g = g + load_part(s.hat + here, part) * load_part(by_hat + c, part) + load_part(constant + c, part);
          put_part(dx + r * cols + here, g, part, streaming);
        });
    }
    stream_fence();
  });
}

// Statistics by row: dx = rstd (h - mean h - x_hat mean(h x_hat)), h = weight * g; the column sums on the way.
static bool saved_epilogue_row_backward(const float* dout, SavedEpilogue k, const float* weight, const float* rstd,
                                        float* partial, float* dx, float* dweight, float* dbias, int64_t rows,
                                        int64_t cols, int threads) {
  Reading how;
  fill_reading(&how, k);
  const int64_t chunks = ceil_div(rows, kChunkRows), stride = padded(cols);
  const float inverse = 1.0f / float(cols);
  const bool enough =
      with_scratch(chunks, 1, cols, threads, [&](int64_t first, int64_t last, const EpilogueScratch& s) {
        for (int64_t chunk = first; chunk < last; ++chunk) {
          float* sums = partial + chunk * 2 * stride;
          std::memset(sums, 0, size_t(2 * stride) * sizeof(float));
          for (int64_t r = chunk * kChunkRows; r < min_of(rows, (chunk + 1) * kChunkRows); ++r) {
            read_epilogue(k, how, r * cols, cols, s.hat, s.slopes);
            f32x16 sum_h = splat(0.0f), sum_hx = sum_h;
            for_vectors(cols, [&](int64_t c, int64_t part) GOSSAMER_INLINED {
              const f32x16 hat = load_part(s.hat + c, part);
              const f32x16 g = times_factor(load_part(dout + r * cols + c, part),
                                            factor16(k, how, r * cols + c, s.slopes + c, part));
              store(sums + c, load<f32x16>(sums + c) + g * hat);
              store(sums + stride + c, load<f32x16>(sums + stride + c) + g);
              const f32x16 h = weight ? g * load_part(weight + c, part) : g;
              put_part(s.slopes + c, h, part, false);
              sum_h += h;
              sum_hx += h * hat;
            });
            const float mean_h = sum_lanes(sum_h) * inverse, mean_hx = sum_lanes(sum_hx) * inverse;
            for_vectors(cols, [&](int64_t c, int64_t part) GOSSAMER_INLINED {
              const f32x16 d = load_part(s.slopes + c, part) - mean_h - load_part(s.hat + c, part) * mean_hx;
              put_part(dx + r * cols + c, d * rstd[r], part, false);
            });
          }
        }
      });
  if (enough) merge_sums(partial, rows, cols, dweight, dbias);
  return enough;
}

// Rows of the epilogue's result, decoded: factor * (weight * x_hat + bias), or the saved result itself.
static bool decode_epilogue(SavedEpilogue k, RowAffine f, bool result_saved, float* out, int64_t first_row,
                            int64_t rows, int64_t cols, int threads) {
  Reading how;
  fill_reading(&how, k);
  const int64_t blocks = ceil_div(rows, kBlockRows), grain = 1 + 2048 / (cols + 1);
  return with_scratch(blocks, grain, cols, threads, [&](int64_t first, int64_t last, const EpilogueScratch& s) {
    for (int64_t r = first * kBlockRows; r < min_of(rows, last * kBlockRows); r += kBlockRows) {
      const int64_t count = min_of(kBlockRows, rows - r), start = (first_row + r) * cols;
      if (result_saved) {
        read_epilogue(k, how, start, count * cols, out + r * cols, nullptr);
        continue;
      }
      read_epilogue(k, how, start, count * cols, s.hat, s.slopes);
      for (int64_t row = 0; row < count; ++row)
        for_vectors(cols, [&](int64_t c, int64_t part) GOSSAMER_INLINED {
          const int64_t here = row * cols + c;
          f32x16 z = load_part(s.hat + here, part);
          if (f.weight) z = z * load_part(f.weight + c, part);
          if (f.bias) z = z + load_part(f.bias + c, part);
          put_part(out + r * cols + here, times_factor(z, factor16(k, how, start + here, s.slopes + here, part)), part,
                   false);
        });
    }
  });
}
