// Products of codes with integer weights (ops/integer_linear.py): sum over k of x[i, k] w[o, k] + bias[o], exact in
// int32, requantised before anything is written. Weights are laid out as in int8_linear-inl.h.

// Rows of codes as groups; groups of four codes of eight bits are read where they are.
struct CodeRows {
  const IntegerProduct& of;
  int64_t groups, stride;
  Buffer<Code> scratch;  // [kRows, groups, kGroup]

  explicit CodeRows(const IntegerProduct& p)
      : of(p),
        groups(ceil_div(p.in, kGroup)),
        stride(code_bytes(p.in, p.bits)),
        scratch(in_place() ? 0 : kRows * groups * kGroup) {}
  bool in_place() const { return kGroup == 4 && of.bits == 8 && of.in % kGroup == 0; }

  // The block of n rows that begins at `row`; where rows are missing, the last stands for them.
  void take(int64_t row, int64_t n, const void** rows) {
    for (int64_t r = 0; r < kRows; ++r) {
      const int64_t there = min_of(r, n - 1);
      if (in_place()) rows[r] = of.x + (row + there) * stride;
      else rows[r] = scratch.data + there * groups * kGroup;
    }
    for (int64_t r = 0; r < n && !in_place(); ++r)
      widen_codes(of.x + (row + r) * stride, scratch.data + r * groups * kGroup);
  }
  void widen_codes(const uint8_t* from, Code* to) const {
    if (of.bits == 8) {
      for (int64_t k = 0; k < of.in; ++k) to[k] = Code(from[k]);
      return;
    }
    if constexpr (sizeof(Code) == 1) {
      unpack_codes(from, of.in / 2, reinterpret_cast<uint8_t*>(to));
    } else {  // a byte to two codes, as one number of twice a code's size
      for (int64_t k = 0; k < of.in / 2; ++k) {
        const uint32_t both = (uint32_t(from[k]) | uint32_t(from[k]) << 12) & 0x000f000f;
        std::memcpy(to + 2 * k, &both, sizeof both);
      }
    }
    if (of.in % 2) to[of.in - 1] = Code(from[of.in / 2] & 15);
  }
};

// The sums of a block of rows and the first V vectors of a panel's outputs.
template <int V>
GOSSAMER_INLINE void integer_tile(const void* const* rows, int64_t groups, const Code* panel, const int32_t* bias,
                                  int32_t* totals) {
  i32x16 acc[kRows][V];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[r][v] = load<i32x16>(bias + v * kLanes);
  for (int64_t g = 0; g < groups; ++g) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      int32_t group;
      std::memcpy(&group, static_cast<const char*>(rows[r]) + g * 4, 4);
      const i32x16 all = splat(group);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v)
        acc[r][v] = dot_group(acc[r][v], all, load<i32x16>(panel + (g * kPanel + v * kLanes) * kGroup));
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(totals + r * kPanel + v * kLanes, acc[r][v]);
}

// Weights, biases and factors of one product, laid out.
struct IntegerWeights {
  int64_t groups;
  Buffer<Code> weights;
  Buffer<int32_t> sums, bias;
  Buffer<float> mult;
  IntegerWeights(const IntegerProduct& p, int64_t outs, int64_t panels)
      : groups(ceil_div(p.in, kGroup)),
        weights(panels * kPanel * groups * kGroup),
        sums(panels * kPanel),
        bias(panels * kPanel),
        mult(panels * kPanel) {
    if (!enough()) return;
    pack_weights(p.w, p.in, outs, weights.data, sums.data);
    for (int64_t o = 0; o < outs; ++o) {
      bias.data[o] = p.bias ? p.bias[o] : 0;
      mult.data[o] = p.mult[o];
    }
  }
  bool enough() const { return weights.data && sums.data && bias.data && mult.data; }

  void tile(const void* const* rows, int64_t panel, int64_t outs, int32_t* totals) const {
    const Code* codes = weights.data + panel * groups * kPanel * kGroup;
    const int32_t* start = bias.data + panel * kPanel;
    by_vectors<kPanelVectors>(min_of<int64_t>(kPanelVectors, ceil_div(outs - panel * kPanel, kLanes)), [&](auto tag) {
      integer_tile<decltype(tag)::value>(rows, groups, codes, start, totals);
    });
  }
};

// One product, or the sum of two, whose sums are multiplied by factors of their own.
static bool integer_linear(const IntegerProduct* products, int count, Requantize to, int64_t rows, int64_t outs,
                           int threads) {
  const int64_t panels = ceil_div(outs, kPanel);
  const IntegerProduct none = {nullptr, 8, 0, nullptr, nullptr, nullptr};
  const IntegerProduct &first_of = products[0], &second_of = count > 1 ? products[1] : none;
  const IntegerWeights one(first_of, outs, panels), two(second_of, count > 1 ? outs : 0, count > 1 ? panels : 0);
  if (!one.enough() || !two.enough()) return false;
  const bool streaming = streams(to, rows, outs);
  const Coder coder(to);
  bool done = true;
  const int64_t grain = max_of<int64_t>(1, 65536 / ((first_of.in + second_of.in) * outs + 1));
  parallel_for(ceil_div(rows, kRows), grain, threads, [&](int64_t first, int64_t last) {
    CodeRows codes(first_of), others(second_of);
    if (!codes.scratch.data || !others.scratch.data) {
      __atomic_store_n(&done, false, __ATOMIC_RELAXED);
      return;
    }
    for (int64_t block = first; block < last; ++block) {
      const int64_t row = block * kRows, n = min_of<int64_t>(kRows, rows - row);
      const void *at[kRows], *other_at[kRows];
      codes.take(row, n, at);
      if (count > 1) others.take(row, n, other_at);
      for (int64_t p = 0; p < panels; ++p) {
        alignas(64) int32_t totals[kRows * kPanel], more[kRows * kPanel];
        const int64_t here = p * kPanel;
        one.tile(at, p, outs, totals);
        if (count > 1) two.tile(other_at, p, outs, more);
        for (int64_t r = 0; r < n; ++r) {
          const RequantizedRow result = {to, coder, row + r, outs, streaming};
          put_row(result, here, min_of<int64_t>(kPanel, outs - here), [&](int64_t c, int64_t) GOSSAMER_INLINED {
            f32x16 t = to_float(load<i32x16>(totals + r * kPanel + c)) * load<f32x16>(one.mult.data + here + c);
            if (count > 1)
              t = t + to_float(load<i32x16>(more + r * kPanel + c)) * load<f32x16>(two.mult.data + here + c);
            return t;
          });
        }
      }
    }
    stream_fence();
  });
  return done;
}
