// norm, activation and dropout whose backward reads codes, not x (ops/chain_keep.py). Forward leaves behind the codes
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
