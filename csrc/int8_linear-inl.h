// out[i, o] = x_scale[i] * w_scale[o] * sum over k of x[i, k] * w[o, k] + bias[o], the sum in int32 and exact.
// The weights are laid out so that one register holds a few consecutive k of sixteen outputs; a block of rows times a
// panel of outputs accumulates in registers, and the epilogue runs there too: no int32 tensor is ever written.

#if defined(__AVX512VNNI__)
constexpr int kGroup = 4;  // u8 x s8, four products an instruction and lane; x + 128 makes the codes unsigned
typedef int8_t Code;
GOSSAMER_INLINE i32x16 dot_group(i32x16 acc, i32x16 x, i32x16 w) {
  acc.part[0] = bits_of<i32x16::Part>(
      _mm512_dpbusd_epi32(bits_of<__m512i>(acc.part[0]), bits_of<__m512i>(x.part[0]), bits_of<__m512i>(w.part[0])));
  return acc;
}
#else
constexpr int kGroup = 2;  // s16 x s16, two products an instruction and lane: nothing saturates
typedef int16_t Code;
GOSSAMER_INLINE i32x16 dot_group(i32x16 acc, i32x16 x, i32x16 w) {
#if defined(__AVX512BW__)
  acc.part[0] += bits_of<i32x16::Part>(_mm512_madd_epi16(bits_of<__m512i>(x.part[0]), bits_of<__m512i>(w.part[0])));
  return acc;
#elif defined(__AVX2__)
  GOSSAMER_EACH_PART acc.part[p] +=
      bits_of<i32x16::Part>(_mm256_madd_epi16(bits_of<__m256i>(x.part[p]), bits_of<__m256i>(w.part[p])));
  return acc;
#else
  return acc + ((x << 16) >> 16) * ((w << 16) >> 16) + (x >> 16) * (w >> 16);
#endif
}
#endif

// Panels of `kPanel` outputs, each [groups][kPanel][kGroup], zero beyond the last output and the last k.
static void pack_weights(const int8_t* w, int64_t in, int64_t outs, Code* packed, int32_t* sums) {
  const int64_t groups = ceil_div(in, kGroup);
  for (int64_t o = 0; o < ceil_div(outs, kPanel) * kPanel; ++o) {
    Code* panel = packed + (o / kPanel) * groups * kPanel * kGroup + (o % kPanel) * kGroup;
    int32_t sum = 0;
    int64_t whole = 0;
    if (o < outs && kGroup == 4)
      for (; whole + kGroup <= in;
           whole += kGroup) {  // four at a time: a byte each would take as long as small products
        const int8_t* from = w + o * in + whole;
        std::memcpy(panel + whole * kPanel, from, 4);
        sum += from[0] + from[1] + from[2] + from[3];
      }
    for (int64_t k = whole; k < groups * kGroup; ++k) {
      const int8_t value = o < outs && k < in ? w[o * in + k] : int8_t(0);
      panel[(k / kGroup) * kPanel * kGroup + k % kGroup] = value;
      sum += value;
    }
    sums[o] = sum;
  }
}

// kRows rows as groups of codes, the tail of k zero; missing rows are left as they are, their sums go unused.
GOSSAMER_INLINE void pack_rows(const int8_t* x, int64_t rows, int64_t in, Code* packed) {
  const int8_t shift = kGroup == 4 ? int8_t(-128) : int8_t(0);  // as unsigned: code + 128
  const int64_t padded = ceil_div(in, kGroup) * kGroup;
  for (int64_t r = 0; r < rows; ++r) {
    Code* row = packed + r * padded;
    for (int64_t k = 0; k < in; ++k) row[k] = Code(int8_t(x[r * in + k] ^ shift));
    for (int64_t k = in; k < padded; ++k) row[k] = Code(shift);
  }
}

// totals[r, o] of one block of rows and one panel of outputs; at(r, g) is where group g of row r stands.
template <typename At>
GOSSAMER_INLINE void int8_tile(const At& at, int64_t groups, const Code* panel, const int32_t* sums, int32_t* totals) {
  i32x16 acc[kRows][kPanelVectors];  // stays in registers: it is written out once, below
  // The shift by 128 is taken back beforehand, modulo 2^32: only the sum itself must fit.
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kPanelVectors; ++v)
      acc[r][v] = kGroup == 4 ? bits_of<i32x16>(load<u32x16>(sums + v * kLanes) * uint32_t(-128)) : splat(0);
  for (int64_t g = 0; g < groups; ++g) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      int32_t group;
      std::memcpy(&group, at(r, g), 4);
      const i32x16 all = splat(group);
#pragma GCC unroll 8
      for (int v = 0; v < kPanelVectors; ++v)
        acc[r][v] = dot_group(acc[r][v], all, load<i32x16>(panel + (g * kPanel + v * kLanes) * kGroup));
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kPanelVectors; ++v) store(totals + r * kPanel + v * kLanes, acc[r][v]);
}

// One row of a tile: scale, add bias and what is there already, store; past the caches when the whole result is too
// large for them.
GOSSAMER_INLINE void int8_epilogue(const int32_t* totals, float x_scale, const float* w_scale, const float* bias,
                                   const float* added, float* out, int64_t left, bool streaming) {
#pragma GCC unroll 4
  for (int v = 0; v < kPanelVectors; ++v) {
    const int64_t o = v * kLanes;
    if (o >= left) break;
    f32x16 y = to_float(load<i32x16>(totals + o)) * x_scale * load<f32x16>(w_scale + o) + load<f32x16>(bias + o);
    if (added) y = y + load_part(added + o, left - o);
    put_part(out + o, y, left - o, streaming);
  }
}

GOSSAMER_INLINE void write_terms(const float* row, const HeadTerms& terms, int64_t i, int64_t rows, int64_t cols) {
  if (!terms.out) return;
  const int64_t width = cols / terms.heads;
  for (int64_t k = 0; k < terms.count; ++k)
    head_dots(row, terms.att + k * cols, terms.heads, width, terms.out + (k * rows + i) * terms.heads);
}

// A product with its weights laid out.
struct PackedProduct {
  Int8Rows x;
  int64_t in, groups;
  Buffer<Code> weights;
  Buffer<int32_t> sums;
  Buffer<float> scales, biases;
  PackedProduct(const Int8Product& p, int64_t outs, int64_t panels)
      : x(p.x),
        in(p.in),
        groups(ceil_div(p.in, kGroup)),
        weights(panels * kPanel * groups * kGroup),
        sums(panels * kPanel),
        scales(panels * kPanel),
        biases(panels * kPanel) {
    if (!enough()) return;
    pack_weights(p.w.codes, in, outs, weights.data, sums.data);
    for (int64_t o = 0; o < outs; ++o) {
      scales.data[o] = p.w.scale[o];
      biases.data[o] = p.bias ? p.bias[o] : 0.0f;
    }
  }
  bool enough() const { return weights.data && sums.data && scales.data && biases.data; }

  // The sums of a block of rows, whose codes are packed, and panel p.
  void tile(const Code* codes, int64_t p, int32_t* totals) const {
    const auto at = [&](int r, int64_t g) { return codes + (r * groups + g) * kGroup; };
    int8_tile(at, groups, weights.data + p * groups * kPanel * kGroup, sums.data + p * kPanel, totals);
  }
  // One row of them to floats, `row` of x, as far as `left` outputs are left in the panel.
  void finish(const int32_t* totals, int64_t row, int64_t p, const float* added, float* out, int64_t left,
              bool streaming) const {
    int8_epilogue(totals, x.scale[row], scales.data + p * kPanel, biases.data + p * kPanel, added, out, left,
                  streaming);
  }
};

// A block of rows of a sum of outer products, at a panel's columns.
GOSSAMER_INLINE void outer_rows(const Outer& outer, int64_t row, int64_t n, int64_t first, int64_t outs, float* to) {
  const auto left = [&](int64_t r) { return outer.left + (row + min_of(r, n - 1)) * outer.rank; };
  for_vectors(min_of<int64_t>(kPanel, outs - first), [&](int64_t c, int64_t count) GOSSAMER_INLINED {
    f32x16 sum[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sum[r] = splat(0.0f);
    for (int64_t k = 0; k < outer.rank; ++k) {
      const f32x16 right = load_part(outer.right + k * outs + first + c, count);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sum[r] += right * left(r)[k];
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) store(to + r * kPanel + c, sum[r]);
  });
}

// The sum of one or two products, or of one and outer products: floats to `out`, or codes to `to` with terms of the
// rows. False when there is no memory for the packed operands.
static bool int8_linear(const Int8Product* products, int count, const float* added, Outer outer, float* out,
                        RowCodes to, HeadTerms terms, int64_t rows, int64_t outs, int threads) {
  const int64_t panels = ceil_div(outs, kPanel);
  const Int8Product none = {{nullptr, nullptr}, {nullptr, nullptr}, nullptr, 0};
  const PackedProduct one(products[0], outs, panels), two(count > 1 ? products[1] : none, count > 1 ? outs : 0, panels);
  if (!one.enough() || !two.enough()) return false;
  bool done = true;
  const bool streaming = out && outs % kLanes == 0 && streams(out, rows * outs);
  const RowWriter writer(to, outs);
  const int64_t grain = max_of<int64_t>(1, 65536 / ((one.in + two.in) * outs + 1));
  parallel_for(ceil_div(rows, kRows), grain, threads, [&](int64_t first, int64_t last) {
    Buffer<Code> codes(kRows * one.groups * kGroup), others(kRows * two.groups * kGroup);
    Buffer<float> whole(out ? 1 : kRows * outs);  // rows that wait for their largest element
    if (!codes.data || !others.data || !whole.data) {
      __atomic_store_n(&done, false, __ATOMIC_RELAXED);
      return;
    }
    for (int64_t block = first; block < last; ++block) {
      const int64_t row = block * kRows, n = min_of<int64_t>(kRows, rows - row);
      pack_rows(one.x.codes + row * one.in, n, one.in, codes.data);
      if (count > 1) pack_rows(two.x.codes + row * two.in, n, two.in, others.data);
      for (int64_t p = 0; p < panels; ++p) {
        alignas(64) int32_t totals[kRows * kPanel];
        alignas(64) float second[kRows * kPanel];
        const int64_t left = outs - p * kPanel;
        if (count > 1) {
          two.tile(others.data, p, totals);
          for (int r = 0; r < n; ++r)
            two.finish(totals + r * kPanel, row + r, p, nullptr, second + r * kPanel, left, false);
        }
        if (outer.rank) outer_rows(outer, row, n, p * kPanel, outs, second);
        one.tile(codes.data, p, totals);
        for (int r = 0; r < n; ++r) {
          const int64_t here = (row + r) * outs + p * kPanel;
          const float* plus = count > 1 || outer.rank ? second + r * kPanel : added ? added + here : nullptr;
          one.finish(totals + r * kPanel, row + r, p, plus, out ? out + here : whole.data + r * outs + p * kPanel, left,
                     streaming);
        }
      }
      for (int r = 0; !out && r < n; ++r) {
        float* finished = whole.data + r * outs;
        write_terms(finished, terms, row + r, rows, outs);
        writer.write(finished, finished, row + r);
      }
    }
    stream_fence();
  });
  return done;
}
