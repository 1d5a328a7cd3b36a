// Dropout with a mask that is a function of (seed, element): recomputed, or saved as one bit per element.
// Element k is kept when its random word is at least p * 2^32; kept elements are divided by 1 - p.

struct DropRule {
  Key key;
  uint32_t threshold;
  float scale;
  bool none;  // p = 1 drops everything
};

GOSSAMER_INLINE DropRule drop_rule(double p, uint64_t seed) {
  const double words = p * 4294967296.0 + 0.5;
  const bool none = words >= 4294967296.0;
  return {key_of(seed), none ? 0xffffffffu : uint32_t(words), none ? 0.0f : float(1.0 / (1.0 - p)), none};
}

template <bool Relu>
GOSSAMER_INLINE f32x16 drop16(f32x16 x, const DropRule& rule, uint64_t index, i32x16* kept) {
  i32x16 keep = rule.none ? splat(0) : random_words(rule.key, index) >= splat(rule.threshold);
  if (Relu) keep &= (x > splat(0.0f)) | (x != x);  // NaN passes, so that a divergence stays visible
  *kept = keep;
  return select(keep, x * rule.scale, splat(0.0f));
}

template <bool Relu, bool KeepMask>
static void drop_all(const float* x, float* out, uint8_t* mask, int64_t numel, DropRule rule, int threads) {
  const int64_t vectors = ceil_div(numel, kLanes);
  const bool streaming = streams(out, numel);
  parallel_for(vectors, 1024, threads, [&](int64_t first, int64_t last) {
    i32x16 kept;
    for (int64_t v = first; v < last; ++v) {
      const int64_t c = v * kLanes, count = min_of<int64_t>(kLanes, numel - c);
      if (count == kLanes) {
        put(out + c, drop16<Relu>(load<f32x16>(x + c), rule, uint64_t(c), &kept), streaming);
        const uint16_t bits = KeepMask ? lane_bits(kept) : 0;
        if (KeepMask) std::memcpy(mask + v * 2, &bits, 2);
      } else {
        float tail[kLanes] = {};
        std::memcpy(tail, x + c, size_t(count) * sizeof(float));
        store(tail, drop16<Relu>(load<f32x16>(tail), rule, uint64_t(c), &kept));
        std::memcpy(out + c, tail, size_t(count) * sizeof(float));
        const uint16_t bits = uint16_t(lane_bits(kept) & ((1u << count) - 1));
        if (KeepMask) std::memcpy(mask + v * 2, &bits, size_t(ceil_div(count, 8)));
      }
    }
    stream_fence();
  });
}

static void dropout(const float* x, float* out, uint8_t* mask, int64_t numel, double p, uint64_t seed, int threads) {
  if (mask) drop_all<false, true>(x, out, mask, numel, drop_rule(p, seed), threads);
  else drop_all<false, false>(x, out, mask, numel, drop_rule(p, seed), threads);
}

static void relu_dropout(const float* x, float* out, uint8_t* mask, int64_t numel, double p, uint64_t seed,
                         int threads) {
  drop_all<true, true>(x, out, mask, numel, drop_rule(p, seed), threads);
}

// The backward of both: x where the bit is set, divided by 1 - p, else 0.
static void masked_scale(const float* x, const uint8_t* mask, float* out, int64_t numel, double p, int threads) {
  const float scale = drop_rule(p, 0).scale;
  const int64_t vectors = ceil_div(numel, kLanes);
  const bool streaming = streams(out, numel);
  parallel_for(vectors, 1024, threads, [&](int64_t first, int64_t last) {
    for (int64_t v = first; v < last; ++v) {
      const int64_t c = v * kLanes, count = min_of<int64_t>(kLanes, numel - c);
      uint16_t bits = 0;
      std::memcpy(&bits, mask + v * 2, count > 8 ? 2 : 1);
      if (count == kLanes) {
        put(out + c, select(bits_to_lanes(bits), load<f32x16>(x + c) * scale, splat(0.0f)), streaming);
      } else {
        for (int64_t k = 0; k < count; ++k) out[c + k] = (bits >> k) & 1 ? x[c + k] * scale : 0.0f;
      }
    }
    stream_fence();
  });
}

static void random_bits(uint64_t seed, int64_t offset, uint32_t* out, int64_t numel, int threads) {
  const Key key = key_of(seed);
  parallel_for(numel, 16384, threads, [&](int64_t first, int64_t last) {
    int64_t c = first;
    for (; c + kLanes <= last; c += kLanes) store(out + c, random_words(key, uint64_t(offset + c)));
    for (; c < last; ++c) out[c] = random_word(key, uint64_t(offset + c));
  });
}
