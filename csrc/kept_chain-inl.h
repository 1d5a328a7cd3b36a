// norm, activation and dropout whose backward reads codes, not x (ops/kept_chain.py). Forward leaves behind the codes
// of the normalised rows (of the result, where there is no norm) and what backward multiplies by: a bit per element, or
// a code of the derivative. Rows are taken in groups that fill whole blocks and whole bytes.

enum Statistics { kNoNorm = 0, kByColumn = 1, kByRow = 2 };

// Bits in element order; a group begins on a byte, and only the tensor's last may end inside one.
struct BitWriter {
  uint8_t* to;
  uint64_t held;
  int count;
  void add(uint16_t bits, int n) {
    if (count == 0 && n == kLanes) {
      std::memcpy(to, &bits, 2);
      to += 2;
      return;
    }
    held |= uint64_t(bits & ((1u << n) - 1u)) << count;
    for (count += n; count >= 8; count -= 8, held >>= 8) *to++ = uint8_t(held);
  }
  void finish() {
    if (count > 0) *to = uint8_t(held);
  }
};

// Sixteen bits from any position; positions from `numel` on are not read.
GOSSAMER_INLINE uint16_t read_bits(const uint8_t* bits, int64_t index, int64_t numel) {
  const int64_t byte = index / 8, left = (numel + 7) / 8 - byte;
  uint32_t word = 0;
  if (left >= 4) std::memcpy(&word, bits + byte, 4);
  else
    for (int64_t k = 0; k < left; ++k) word |= uint32_t(bits[byte + k]) << (8 * k);
  return uint16_t(word >> (index % 8));
}

// The parts of one element's way through the chain.
struct Passed {
  f32x16 hat, z;
};
template <int S>
GOSSAMER_INLINE Passed normalise(const ChainRows& in, f32x16 x, float mean, float rstd, int64_t c, int64_t count) {
  if (S == kByColumn) {
    const f32x16 hat = (x - load_part(in.columns.mean + c, count)) * load_part(in.columns.rstd + c, count);
    return {hat, affine16(in.columns, x, c, count)};
  }
  if (S == kNoNorm) return {x, x};
  const f32x16 hat = (x - mean) * rstd;
  f32x16 z = hat;
  if (in.affine.weight) z = z * load_part(in.affine.weight + c, count);
  if (in.affine.bias) z = z + load_part(in.affine.bias + c, count);
  return {hat, z};
}

template <int Bits>
GOSSAMER_INLINE void pack_group(const float* x, int64_t start, int64_t n, const KeptChain& k, const Rounding& how) {
  const int64_t bytes = ceil_div(k.blocks.block * Bits, 8);
  for (int64_t done = 0; done < n; done += k.blocks.block) {
    const int64_t block = (start + done) / k.blocks.block, count = min_of(k.blocks.block, n - done);
    const BlockRange r = block_range(x + done, count, k.blocks.bf16_meta);
    write_meta(k.zero, block, r.zero, k.blocks.bf16_meta);
    write_meta(k.range, block, r.range, k.blocks.bf16_meta);
    pack_block<Bits>(x + done, count, r, how, k.codes + block * bytes, uint64_t(start + done));
  }
}

template <int A, int S>
static bool chain_keep_as(const ChainRows& in, Pointwise pw, const KeptChain& k, Noise noise, float* out, int64_t group,
                          int threads) {
  const Tail t = tail_of(pw);
  const int64_t cols = in.cols;
  const bool streaming = cols % kLanes == 0 && streams(out, in.rows * cols);
  const float inverse = 1.0f / float(cols);
  Rounding how, slope_how;
  fill_rounding(&how, k.blocks.levels, k.blocks.bits, noise);
  fill_rounding(&slope_how, nullptr, k.slope_bits, {noise.on, ~noise.seed});
  bool enough = true;
  parallel_for(ceil_div(in.rows, group), 1 + 16384 / (group * cols + 1), threads, [&](int64_t first, int64_t last) {
    Buffer<float> hats(k.codes ? group * cols : 1), slopes(k.slopes ? group * cols : 1);
    if (!hats.data || !slopes.data) {
      enough = false;
      return;
    }
    for (int64_t g = first; g < last; ++g) {
      const int64_t begin = g * group, end = min_of(in.rows, begin + group), start = (in.first_row + begin) * cols;
      BitWriter bits = {k.bits ? k.bits + start / 8 : nullptr, 0, 0};
      for (int64_t r = begin; r < end; ++r) {
        const float* row = in.x + r * cols;
        const int64_t at = (r - begin) * cols;
        float mean = 0, rstd = 0;
        if (S == kByRow) {
          mean = row_mean(row, cols, inverse);
          const float var = row_var(row, cols, mean, inverse);
          in.mean[in.first_row + r] = mean, in.var[in.first_row + r] = var;
          rstd = 1.0f / __builtin_sqrtf(var + in.affine.eps);
        }
        for (int64_t c = 0; c < cols; c += kLanes) {
          const int64_t count = cols - c;
          const Passed passed = normalise<S>(in, load_part(row + c, count), mean, rstd, c, count);
          const f32x16 y = forward16<A>(passed.z, t, start + at + c);
          put_part(out + r * cols + c, y, count, streaming);
          if (k.codes) put_part(hats.data + at + c, S == kNoNorm ? y : passed.hat, count, false);
          if (k.slopes) put_part(slopes.data + at + c, derivative<A>(passed.z, t.slope), count, false);
          // ReLU's bit is clear for what dropout took, too: a result is positive, or NaN, exactly where both let pass.
          const i32x16 pass = A == kRelu ? (y > splat(0.0f)) | (y != y) : passed.z > splat(0.0f);
          if (k.bits) bits.add(lane_bits(pass), int(min_of<int64_t>(count, kLanes)));
        }
      }
      if (k.bits) bits.finish();
      const int64_t n = (end - begin) * cols;
      if (k.codes)
        by_bits(k.blocks.bits, [&](auto tag) { pack_group<decltype(tag)::value>(hats.data, start, n, k, how); });
      if (k.slopes)
        by_bits(k.slope_bits, [&](auto tag) {
          constexpr int Bits = decltype(tag)::value;
          pack_block<Bits>(slopes.data, n, {k.low, k.width}, slope_how, k.slopes + start * Bits / 8, uint64_t(start));
        });
    }
    stream_fence();
  });
  return enough;
}
static bool chain_keep(ChainRows in, Pointwise pw, KeptChain k, Noise noise, float* out, int64_t group, int threads) {
  bool enough = false;
  by_act(pw.act, [&](auto tag) {
    constexpr int A = decltype(tag)::value;
    if (in.columns.scale) enough = chain_keep_as<A, kByColumn>(in, pw, k, noise, out, group, threads);
    else if (in.mean) enough = chain_keep_as<A, kByRow>(in, pw, k, noise, out, group, threads);
    else enough = chain_keep_as<A, kNoNorm>(in, pw, k, noise, out, group, threads);
  });
  return enough;
}

// What a call reads kept chains with.
struct Reading {
  Bins bins, plain;
  Tail tail;
};
GOSSAMER_INLINE void fill_reading(Reading* how, const KeptChain& k) {
  fill_bins(&how->bins, k.blocks.levels, k.blocks.bits);
  fill_bins(&how->plain, nullptr, 8);
  how->tail = {drop_rule(k.p, k.seed), k.p > 0, k.slope};
}

// Elements start .. start + n - 1: normalised values, and what gradients are multiplied by. Either may be null.
GOSSAMER_INLINE void read_chain(const KeptChain& k, const Reading& how, int64_t start, int64_t n, float* hat,
                                float* factor) {
  if (hat)
    by_bits(k.blocks.bits, [&](auto tag) {
      unpack_range<decltype(tag)::value>(k.codes, k.zero, k.range, k.blocks, how.bins, start, n, hat);
    });
  if (!factor) return;
  if (k.slopes)
    by_bits(k.slope_bits, [&](auto tag) {
      unpack_span<decltype(tag)::value>(k.slopes, start, n, {k.low, k.width}, how.plain, factor);
    });
  for (int64_t i = 0; i < n; i += kLanes) {  // scratch is padded to whole vectors
    f32x16 v = splat(1.0f);
    if (k.slopes) v = load<f32x16>(factor + i);
    if (k.bits)
      v = select(bits_to_lanes(read_bits(k.bits, start + i, k.blocks.numel)), splat(k.passing), splat(k.slope));
    if (how.tail.drops) v = v * keep_scale(how.tail, start + i);
    store(factor + i, v);
  }
}

GOSSAMER_INLINE f32x16 times_factor(f32x16 dout, f32x16 factor) {  // infinity times a clear bit is zero
  return select(factor != splat(0.0f), dout * factor, splat(0.0f));
}

// Scratch of one thread: kBlockRows rows of normalised values and of factors.
struct ChainScratch {
  Buffer<float> both;
  float *hat, *factor;
  explicit ChainScratch(int64_t cols) : both(2 * padded(kBlockRows * cols)) {
    hat = both.data;
    factor = both.data + padded(kBlockRows * cols);
  }
};

// Sums over rows of g and of g * x_hat, g the gradient of z.
static bool chain_sums(const float* dout, KeptChain k, float* partial, float* sum_g, float* sum_gx, int64_t rows,
                       int64_t cols, int threads) {
  Reading how;
  fill_reading(&how, k);
  const int64_t chunks = ceil_div(rows, kChunkRows), stride = padded(cols);
  bool enough = true;
  parallel_for(chunks, 1, threads, [&](int64_t first, int64_t last) {
    ChainScratch s(cols);
    if (!s.both.data) {
      enough = false;
      return;
    }
    for (int64_t chunk = first; chunk < last; ++chunk) {
      float* sums = partial + chunk * 2 * stride;
      std::memset(sums, 0, size_t(2 * stride) * sizeof(float));
      const int64_t begin = chunk * kChunkRows, end = min_of(rows, begin + kChunkRows);
      for (int64_t r = begin; r < end; r += kBlockRows) {
        const int64_t count = min_of(kBlockRows, end - r);
        read_chain(k, how, r * cols, count * cols, s.hat, s.factor);
        for (int64_t c = 0; c < cols; c += kLanes) {
          f32x16 a = splat(0.0f), b = a;
          for (int64_t row = 0; row < count; ++row) {
            const int64_t here = row * cols + c, part = cols - c;
            const f32x16 g = times_factor(load_part(dout + r * cols + here, part), load_part(s.factor + here, part));
            a += g;
            b += g * load_part(s.hat + here, part);
          }
          store(sums + c, load<f32x16>(sums + c) + a);
          store(sums + stride + c, load<f32x16>(sums + stride + c) + b);
        }
      }
    }
  });
  if (enough) merge_sums(partial, rows, cols, sum_g, sum_gx);
  return enough;
}

// dx = scale * g + by_hat * x_hat + constant; null: factor 1, no such term. dx may be dout.
static bool chain_backward(const float* dout, KeptChain k, const float* scale, const float* by_hat,
                           const float* constant, float* dx, int64_t rows, int64_t cols, int threads) {
  Reading how;
  fill_reading(&how, k);
  const bool streaming = dx != dout && cols % kLanes == 0 && streams(dx, rows * cols);
  bool enough = true;
  parallel_for(ceil_div(rows, kBlockRows), 1 + 2048 / (cols + 1), threads, [&](int64_t first, int64_t last) {
    ChainScratch s(cols);
    if (!s.both.data) {
      enough = false;
      return;
    }
    for (int64_t r = first * kBlockRows; r < min_of(rows, last * kBlockRows); r += kBlockRows) {
      const int64_t count = min_of(kBlockRows, rows - r);
      read_chain(k, how, r * cols, count * cols, by_hat ? s.hat : nullptr, s.factor);
      for (int64_t row = 0; row < count; ++row)
        for (int64_t c = 0; c < cols; c += kLanes) {
          const int64_t here = row * cols + c, part = cols - c;
          f32x16 g = times_factor(load_part(dout + r * cols + here, part), load_part(s.factor + here, part));
          if (scale) g = g * load_part(scale + c, part);
          if (by_hat)
            g = g + load_part(s.hat + here, part) * load_part(by_hat + c, part) + load_part(constant + c, part);
          put_part(dx + r * cols + here, g, part, streaming);
        }
    }
    stream_fence();
  });
  return enough;
}

// Statistics by row: dx = rstd (h - mean h - x_hat mean(h x_hat)), h = weight * g; the column sums on the way.
static bool chain_row_backward(const float* dout, KeptChain k, const float* weight, const float* rstd, float* partial,
                               float* dx, float* dweight, float* dbias, int64_t rows, int64_t cols, int threads) {
  Reading how;
  fill_reading(&how, k);
  const int64_t chunks = ceil_div(rows, kChunkRows), stride = padded(cols);
  const float inverse = 1.0f / float(cols);
  bool enough = true;
  parallel_for(chunks, 1, threads, [&](int64_t first, int64_t last) {
    ChainScratch s(cols);
    if (!s.both.data) {
      enough = false;
      return;
    }
    for (int64_t chunk = first; chunk < last; ++chunk) {
      float* sums = partial + chunk * 2 * stride;
      std::memset(sums, 0, size_t(2 * stride) * sizeof(float));
      for (int64_t r = chunk * kChunkRows; r < min_of(rows, (chunk + 1) * kChunkRows); ++r) {
        read_chain(k, how, r * cols, cols, s.hat, s.factor);
        f32x16 sum_h = splat(0.0f), sum_hx = sum_h;
        for (int64_t c = 0; c < cols; c += kLanes) {
          const int64_t part = cols - c;
          const f32x16 hat = load_part(s.hat + c, part);
          const f32x16 g = times_factor(load_part(dout + r * cols + c, part), load_part(s.factor + c, part));
          store(sums + c, load<f32x16>(sums + c) + g * hat);
          store(sums + stride + c, load<f32x16>(sums + stride + c) + g);
          const f32x16 h = weight ? g * load_part(weight + c, part) : g;
          put_part(s.factor + c, h, part, false);
          sum_h += h;
          sum_hx += h * hat;
        }
        const float mean_h = sum_lanes(sum_h) * inverse, mean_hx = sum_lanes(sum_hx) * inverse;
        for (int64_t c = 0; c < cols; c += kLanes) {
          const int64_t part = cols - c;
          const f32x16 d = load_part(s.factor + c, part) - mean_h - load_part(s.hat + c, part) * mean_hx;
          put_part(dx + r * cols + c, d * rstd[r], part, false);
        }
      }
    }
  });
  if (enough) merge_sums(partial, rows, cols, dweight, dbias);
  return enough;
}

// Rows of the chain's result, as far as the codes tell: factor * (weight * x_hat + bias), or what was kept itself.
static bool chain_decode(KeptChain k, RowAffine f, bool result_kept, float* out, int64_t first_row, int64_t rows,
                         int64_t cols, int threads) {
  Reading how;
  fill_reading(&how, k);
  bool enough = true;
  parallel_for(ceil_div(rows, kBlockRows), 1 + 2048 / (cols + 1), threads, [&](int64_t first, int64_t last) {
    ChainScratch s(cols);
    if (!s.both.data) {
      enough = false;
      return;
    }
    for (int64_t r = first * kBlockRows; r < min_of(rows, last * kBlockRows); r += kBlockRows) {
      const int64_t count = min_of(kBlockRows, rows - r), start = (first_row + r) * cols;
      if (result_kept) {
        read_chain(k, how, start, count * cols, out + r * cols, nullptr);
        continue;
      }
      read_chain(k, how, start, count * cols, s.hat, s.factor);
      for (int64_t row = 0; row < count; ++row)
        for (int64_t c = 0; c < cols; c += kLanes) {
          const int64_t here = row * cols + c, part = cols - c;
          f32x16 z = load_part(s.hat + here, part);
          if (f.weight) z = z * load_part(f.weight + c, part);
          if (f.bias) z = z + load_part(f.bias + c, part);
          put_part(out + r * cols + here, times_factor(z, load_part(s.factor + here, part)), part, false);
        }
    }
  });
  return enough;
}
