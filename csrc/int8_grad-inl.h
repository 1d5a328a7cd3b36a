// dW = G^T X for rows X of int8 codes (ops/int8_grad.py): the row scales s sit on the summed index, so H = s (.) G is
// quantised again, column by column in chunks of rows, stochastically; dW += t (h^T q) chunk by chunk, the inner
// product exact in int32. Both operands are laid out so that one register lane holds kGroup consecutive rows of one
// column.

constexpr int64_t kGradGroups = kGradChunk / kGroup;
constexpr int kGroupBits = 32 / kGroup;
constexpr int64_t kGradOuts = kRows * kLanes / 2;  // outputs that lie together: whole blocks of rows and whole vectors
static_assert(kGradOuts % kRows == 0 && kGradOuts % kLanes == 0, "whole blocks and vectors");

// Where group `group` of output o lies among the packed rows of a chunk, [outputs / kGradOuts][groups][kGradOuts].
GOSSAMER_INLINE int64_t grad_place(int64_t group, int64_t o) {
  return ((o / kGradOuts * kGradGroups + group) * kGradOuts + o % kGradOuts) * kGroup;
}

// Rows of X as panels [groups][kPanel][kGroup]; sums of each column for taking back the shift by 128.
static void pack_grad_panels(const int8_t* x, int64_t rows, int64_t in, Code* packed, int32_t* sums) {
  const int64_t panels = ceil_div(in, kPanel);
  std::memset(sums, 0, size_t(panels * kPanel) * sizeof(int32_t));
  for (int64_t g = 0; g < kGradGroups; ++g)
    for (int64_t k = 0; k < panels * kPanel; k += kLanes) {
      i32x16 together = splat(0), sum = load<i32x16>(sums + k);
      for (int r = 0; r < kGroup; ++r) {
        const int64_t i = g * kGroup + r;
        if (i >= rows) break;
        const i32x16 q = widen_part(x + i * in + k, in - k);
        sum += q;
        together = together | ((q & ((1 << kGroupBits) - 1)) << (r * kGroupBits));
      }
      store(sums + k, sum);
      Code* panel = packed + (k / kPanel) * kGradGroups * kPanel * kGroup;
      store(panel + (g * kPanel + k % kPanel) * kGroup, together);
    }
}

// H of one chunk, packed by `grad_place`, and the step of each column; there is room for `stride` outputs.
template <typename G>
static void pack_grad_rows(const G* g, const float* row_scale, int64_t first, int64_t rows, int64_t outs,
                           int64_t stride, Key key, int32_t* top, float* inverse, Code* packed, float* step) {
  std::memset(top, 0, size_t(stride) * sizeof(int32_t));
  for (int64_t i = first; i < first + rows; ++i)
    for (int64_t o = 0; o < outs; o += kLanes) {
      const f32x16 h = load_float_part(g + i * outs + o, outs - o) * row_scale[i];
      store(top + o, maximum(load<i32x16>(top + o), bits_of<i32x16>(h) & 0x7fffffff));
    }
  for (int64_t o = 0; o < stride; ++o) {
    const float a = bits_of<float>(top[o]);
    const bool finite = top[o] < 0x7f800000;
    step[o] = !finite ? __builtin_nanf("") : a < kTiny ? 0.0f : a / kCodeMax;
    inverse[o] = !finite || a < kTiny ? 0.0f : kCodeMax / a;
  }
  const int32_t shift = kGroup == 4 ? 128 : 0;  // as unsigned: code + 128
  // V vectors of outputs from o on; noise(index, v) gives what rounds vector v of elements from `index` on.
  const auto pack = [&](auto tag, int64_t group, int64_t o, const auto& noise) GOSSAMER_INLINED {
    constexpr int V = decltype(tag)::value;
    i32x16 together[V];
    for (int v = 0; v < V; ++v) together[v] = splat(0);
    for (int r = 0; r < kGroup; ++r) {
      const int64_t i = first + group * kGroup + r;
      if (i >= first + rows) break;
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        const int64_t at = o + v * kLanes;
        const f32x16 h = load_float_part(g + i * outs + at, V > 1 ? kLanes : outs - at) * row_scale[i];
        const f32x16 by = load<f32x16>(inverse + at);
        const i32x16 there = by != splat(0.0f);
        i32x16 q = round_up(select(there, h * by, splat(0.0f)), noise(uint64_t(i * outs + o), v));
        q = select(there, q, splat(0)) + shift;
        together[v] = together[v] | ((q & ((1 << kGroupBits) - 1)) << (r * kGroupBits));
      }
    }
    for (int v = 0; v < V; ++v) store(packed + grad_place(group, o + v * kLanes), together[v]);
  };
  const auto whole = [&](uint64_t index, int v) GOSSAMER_INLINED { return random_half(key, index / 32, v); };
  const auto any = [&](uint64_t index, int) GOSSAMER_INLINED { return random_halves(key, index); };
  for (int64_t group = 0; group < kGradGroups; ++group) {
    int64_t o = 0;
    for (; outs % 32 == 0 && o < outs; o += 2 * kLanes) pack(VectorsTag<2>(), group, o, whole);
    for (; o < outs; o += kLanes) pack(VectorsTag<1>(), group, o, any);
  }
}

// dw = the sum of all slabs' sums, in order.
static void add_slabs(const float* partial, float* dw, int64_t slabs, int64_t numel, int threads) {
  parallel_for(numel, 4096, threads, [&](int64_t first, int64_t last) {
    for (int64_t c = first; c < last; c += kLanes) {
      const int64_t left = last - c;
      f32x16 sum = load_part(partial + c, left);
      for (int64_t slab = 1; slab < slabs; ++slab) sum = sum + load_part(partial + slab * numel + c, left);
      put_part(dw + c, sum, left, false);
    }
  });
}

template <typename G>
static bool int8_grad(const G* g, const float* row_scale, const int8_t* x, uint64_t seed, float* partial, float* dw,
                      int64_t rows, int64_t outs, int64_t in, int threads) {
  const int64_t panels = ceil_div(in, kPanel), stride = ceil_div(outs, kGradOuts) * kGradOuts;
  const int64_t slabs = grad_slabs(rows, outs, in), chunks = ceil_div(rows, kGradChunk);
  const Key key = key_of(seed);
  bool enough = true;
  parallel_for(slabs, 1, threads, [&](int64_t first_slab, int64_t last_slab) {
    Buffer<Code> xs(panels * kPanel * kGradChunk), hs(stride * kGradChunk);
    Buffer<int32_t> sums(panels * kPanel), top(stride);
    Buffer<float> inverse(stride), step(stride);
    if (!xs.data || !hs.data || !sums.data || !top.data || !inverse.data || !step.data) {
      __atomic_store_n(&enough, false, __ATOMIC_RELAXED);
      return;
    }
    for (int64_t slab = first_slab; slab < last_slab; ++slab) {
      float* total = partial + slab * outs * in;
      std::memset(total, 0, size_t(outs * in) * sizeof(float));
      for (int64_t chunk = chunks * slab / slabs; chunk < chunks * (slab + 1) / slabs; ++chunk) {
        const int64_t first = chunk * kGradChunk, count = min_of(kGradChunk, rows - first);
        pack_grad_panels(x + first * in, count, in, xs.data, sums.data);
        pack_grad_rows(g, row_scale, first, count, outs, stride, key, top.data, inverse.data, hs.data, step.data);
        for (int64_t p = 0; p < panels; ++p)
          for (int64_t o = 0; o < outs; o += kRows) {
            alignas(64) int32_t found[kRows * kPanel];
            const Code* block = hs.data + grad_place(0, o);
            const auto at = [&](int r, int64_t group) { return block + (group * kGradOuts + r) * kGroup; };
            int8_tile(at, kGradGroups, xs.data + p * kGradGroups * kPanel * kGroup, sums.data + p * kPanel, found);
            for (int64_t r = 0; r < min_of<int64_t>(kRows, outs - o); ++r)
              for (int v = 0; v < kPanelVectors; ++v) {
                const int64_t k = p * kPanel + v * kLanes, left = in - k;
                if (left <= 0) break;
                float* to = total + (o + r) * in + k;
                const f32x16 sum = to_float(load<i32x16>(found + r * kPanel + v * kLanes)) * step.data[o + r];
                put_part(to, load_part(to, left) + sum, left, false);
              }
          }
      }
    }
  });
  if (enough) add_slabs(partial, dw, slabs, outs * in, threads);
  return enough;
}

// The same with G as it is, in float32; for few outputs, as many as sums fit in registers.
constexpr int kExactOuts = 8;
template <int K>
GOSSAMER_INLINE void exact_tile(const float* g, Int8Rows x, int64_t first, int64_t last, int64_t outs, int64_t in,
                                int64_t c, float* total) {
  f32x16 sum[K];
#pragma GCC unroll 8
  for (int k = 0; k < K; ++k) sum[k] = load_part(total + k * in + c, in - c);
  for (int64_t i = first; i < last; ++i) {
    const f32x16 row = load_float_part(x.codes + i * in + c, in - c) * x.scale[i];
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k) sum[k] += row * g[i * outs + k];
  }
#pragma GCC unroll 8
  for (int k = 0; k < K; ++k) put_part(total + k * in + c, sum[k], in - c, false);
}

static void int8_grad_exact(const float* g, Int8Rows x, float* partial, float* dw, int64_t rows, int64_t outs,
                            int64_t in, int threads) {
  const int64_t slabs = grad_slabs(rows, outs, in), chunks = ceil_div(rows, kGradChunk);
  parallel_for(slabs, 1, threads, [&](int64_t first_slab, int64_t last_slab) {
    for (int64_t slab = first_slab; slab < last_slab; ++slab) {
      float* total = partial + slab * outs * in;
      std::memset(total, 0, size_t(outs * in) * sizeof(float));
      for (int64_t chunk = chunks * slab / slabs; chunk < chunks * (slab + 1) / slabs; ++chunk) {
        const int64_t first = chunk * kGradChunk, last = min_of(first + kGradChunk, rows);
        for (int64_t o = 0; o < outs; o += kExactOuts)
          for (int64_t c = 0; c < in; c += kLanes)
            by_vectors<kExactOuts>(int(min_of<int64_t>(kExactOuts, outs - o)), [&](auto tag) {
              exact_tile<decltype(tag)::value>(g + o, x, first, last, outs, in, c, total + o * in);
            });
      }
    }
  });
  add_slabs(partial, dw, slabs, outs * in, threads);
}
