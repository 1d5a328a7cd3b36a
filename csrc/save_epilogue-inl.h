// Epilogue (norm, activation, dropout) that saves codes for backward, not x (ops/save_epilogue.py): the codes of the
// normalised rows (of the result, where there is no norm) and the factor of backward as a bit per element or a code of
// the derivative. Rows are processed in groups that fill whole blocks and whole bytes.

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

// The intermediate values of an epilogue's elements.
struct Passed {
  f32x16 hat, z;
};
template <int S>
GOSSAMER_INLINE Passed normalise(const EpilogueRows& in, f32x16 x, float mean, float rstd, int64_t c, int64_t count) {
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
GOSSAMER_INLINE void pack_group(const float* x, int64_t start, int64_t n, const SavedEpilogue& k, const Rounding& how) {
  const int64_t bytes = ceil_div(k.blocks.block * Bits, 8);
  for (int64_t done = 0; done < n; done += k.blocks.block) {
    const int64_t block = (start + done) / k.blocks.block, count = min_of(k.blocks.block, n - done);
    const BlockRange r = block_range(x + done, count, k.blocks.bf16_meta);
    write_meta(k.zero, block, r.zero, k.blocks.bf16_meta);
    write_meta(k.range, block, r.range, k.blocks.bf16_meta);
    pack_block<Bits>(x + done, count, r, how, k.codes + block * bytes, uint64_t(start + done));
  }
}

// Arguments of one call, prepared for all threads.
struct Saving {
  EpilogueRows in;
  SavedEpilogue k;
  Tail tail;
  Rounding how, slope_how;
  float inverse;
  bool streaming;
};

// Rows begin .. end - 1, one group: the result to `out`, whose first row is row `begin`; hats and slopes are scratch.
template <int A, int S>
static void save_group(const Saving& c, int64_t begin, int64_t end, float* out, float* hats, float* slopes) {
  const EpilogueRows& in = c.in;
  const SavedEpilogue& k = c.k;
  const int64_t cols = in.cols, start = (in.first_row + begin) * cols, n = (end - begin) * cols;
  BitWriter bits = {k.bits ? k.bits + start / 8 : nullptr, 0, 0};
  for (int64_t r = begin; r < end; ++r) {
    const float* row = in.x + r * cols;
    const int64_t at = (r - begin) * cols;
    float mean = 0, rstd = 0;
    if (S == kByRow) {
      mean = row_mean(row, cols, c.inverse);
      const float var = row_var(row, cols, mean, c.inverse);
      in.mean[in.first_row + r] = mean, in.var[in.first_row + r] = var;
      rstd = 1.0f / __builtin_sqrtf(var + in.affine.eps);
    }
    for_vectors(cols, [&](int64_t j, int64_t count) GOSSAMER_INLINED {
      prefetch_rows(row + j, cols, kRowsAhead);
      const Passed passed = normalise<S>(in, load_part(row + j, count), mean, rstd, j, count);
      const f32x16 y = forward16<A>(passed.z, c.tail, start + at + j);
      put_part(out + at + j, y, count, c.streaming);
      if (k.codes) put_part(hats + at + j, S == kNoNorm ? y : passed.hat, count, false);
      if (k.slopes) put_part(slopes + at + j, derivative<A>(passed.z, c.tail.slope), count, false);
      // ReLU's bit is clear for dropped elements, too: a result is positive, or NaN, exactly where both let it pass.
      const i32x16 pass = A == kRelu ? (y > splat(0.0f)) | (y != y) : passed.z > splat(0.0f);
      if (k.bits) bits.add(lane_bits(pass), int(count));
    });
  }
  if (k.bits) bits.finish();
  if (k.codes) by_bits(k.blocks.bits, [&](auto tag) { pack_group<decltype(tag)::value>(hats, start, n, k, c.how); });
  if (k.slopes)
    by_bits(k.slope_bits, [&](auto tag) {
      constexpr int Bits = decltype(tag)::value;
      pack_block<Bits>(slopes, n, {k.low, k.width}, c.slope_how, k.slopes + start * Bits / 8, uint64_t(start));
    });
}

// All groups; with products, as many rows at a time as stay in the cache until they are multiplied.
template <int A, int S>
static bool save_epilogue_as(const Saving& c, float* out, const Panels& panels, int64_t group, int threads) {
  const int64_t rows = c.in.rows, cols = c.in.cols;
  const int64_t step = max_of<int64_t>(1, panels.step() / group) * group;
  bool enough = true;
  parallel_for(ceil_div(rows, step), 1 + 16384 / (step * cols + 1), threads, [&](int64_t first, int64_t last) {
    Buffer<float> hats(c.k.codes ? group * cols : 1), slopes(c.k.slopes ? group * cols : 1);
    Buffer<float> tile(panels.count ? step * cols : 1);
    Multiplier products(panels);
    if (!hats.data || !slopes.data || !tile.data || !products.enough()) {
      __atomic_store_n(&enough, false, __ATOMIC_RELAXED);
      return;
    }
    for (int64_t s = first; s < last; ++s) {
      const int64_t begin = s * step, end = min_of(rows, begin + step);
      float* to = panels.count ? tile.data : out + begin * cols;
      for (int64_t r = begin; r < end; r += group)
        save_group<A, S>(c, r, min_of(end, r + group), to + (r - begin) * cols, hats.data, slopes.data);
      products.multiply(tile.data, begin, end - begin);
    }
    stream_fence();
  });
  return enough;
}
static bool save_epilogue(EpilogueRows in, Pointwise pw, SavedEpilogue k, Noise noise, float* out,
                          const Product* products, int count, int64_t group, int threads) {
  Saving c = {in, k, tail_of(pw), {}, {}, 1.0f / float(in.cols), false};
  c.streaming = !count && in.cols % kLanes == 0 && streams(out, in.rows * in.cols);
  fill_rounding(&c.how, k.blocks.levels, k.blocks.bits, noise);
  fill_rounding(&c.slope_how, nullptr, k.slope_bits, {noise.on, ~noise.seed});
  const Panels panels(products, count, in.rows, in.cols, threads);
  if (!panels.data.data) return false;
  bool enough = false;
  by_act(pw.act, [&](auto tag) {
    constexpr int A = decltype(tag)::value;
    if (in.columns.scale) enough = save_epilogue_as<A, kByColumn>(c, out, panels, group, threads);
    else if (in.mean) enough = save_epilogue_as<A, kByRow>(c, out, panels, group, threads);
    else enough = save_epilogue_as<A, kNoNorm>(c, out, panels, group, threads);
  });
  return enough;
}
