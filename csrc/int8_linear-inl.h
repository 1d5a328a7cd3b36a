// out[i, o] = x_scale[i] * w_scale[o] * sum over k of x[i, k] * w[o, k] + bias[o], the sum in int32 and exact.
// The weights are laid out so that one register holds a few consecutive k of sixteen outputs; a block of rows times a
// panel of outputs accumulates in registers, and the epilogue runs there too: no int32 tensor is ever written.

#if defined(__AVX512VNNI__)
constexpr int kGroup = 4;  // u8 x s8, four products an instruction and lane; x + 128 makes the codes unsigned
typedef int8_t Code;
GOSSAMER_INLINE i32x16 dot_group(i32x16 acc, i32x16 x, const Code* w) {
  const i32x16 weights = load<i32x16>(w);
  acc.part[0] = bits_of<i32x16::Part>(_mm512_dpbusd_epi32(bits_of<__m512i>(acc.part[0]), bits_of<__m512i>(x.part[0]),
                                                          bits_of<__m512i>(weights.part[0])));
  return acc;
}
#else
constexpr int kGroup = 2;  // s16 x s16, two products an instruction and lane: nothing saturates
typedef int16_t Code;
GOSSAMER_INLINE i32x16 dot_group(i32x16 acc, i32x16 x, const Code* w) {
#if defined(__AVX512BW__)
  const i32x16 weights = load<i32x16>(w);
  acc.part[0] +=
      bits_of<i32x16::Part>(_mm512_madd_epi16(bits_of<__m512i>(x.part[0]), bits_of<__m512i>(weights.part[0])));
  return acc;
#elif defined(__AVX2__)
  const i32x16 weights = load<i32x16>(w);
  GOSSAMER_EACH_PART acc.part[p] +=
      bits_of<i32x16::Part>(_mm256_madd_epi16(bits_of<__m256i>(x.part[p]), bits_of<__m256i>(weights.part[p])));
  return acc;
#else
  const i32x16 pairs = load<i32x16>(w);
  return acc + ((x << 16) >> 16) * ((pairs << 16) >> 16) + (x >> 16) * (pairs >> 16);
#endif
}
#endif

// Panels of `kPanel` outputs, each [groups][kPanel][kGroup], zero beyond the last output and the last k.
static void pack_weights(const int8_t* w, int64_t in, int64_t outs, Code* packed, int32_t* sums) {
  const int64_t groups = ceil_div(in, kGroup);
  for (int64_t o = 0; o < ceil_div(outs, kPanel) * kPanel; ++o) {
    Code* panel = packed + (o / kPanel) * groups * kPanel * kGroup + (o % kPanel) * kGroup;
    int32_t sum = 0;
    for (int64_t k = 0; k < groups * kGroup; ++k) {
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
        acc[r][v] = dot_group(acc[r][v], all, panel + (g * kPanel + v * kLanes) * kGroup);
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
    for (int64_t h = 0; h < terms.heads; ++h)
      terms.out[(k * rows + i) * terms.heads + h] = dot(row + h * width, terms.att + k * cols + h * width, width);
}

// Floats to `out`, or codes to `to` with terms of the rows; false when there is no memory for the packed operands.
static bool int8_linear(Int8Rows x, Int8Rows w, const float* bias, const float* added, float* out, RowCodes to,
                        HeadTerms terms, int64_t rows, int64_t in, int64_t outs, int threads) {
  const int64_t groups = ceil_div(in, kGroup), panels = ceil_div(outs, kPanel), padded_outs = panels * kPanel;
  Buffer<Code> packed(padded_outs * groups * kGroup);
  Buffer<int32_t> sums(padded_outs);
  Buffer<float> scales(padded_outs), biases(padded_outs);
  if (!packed.data || !sums.data || !scales.data || !biases.data) return false;
  bool done = true;
  pack_weights(w.codes, in, outs, packed.data, sums.data);
  for (int64_t o = 0; o < padded_outs; ++o) {
    scales.data[o] = o < outs ? w.scale[o] : 0.0f;
    biases.data[o] = o < outs && bias ? bias[o] : 0.0f;
  }
  const bool streaming = out && outs % kLanes == 0 && streams(out, rows * outs);
  const RowWriter writer(to, outs);
  parallel_for(
      ceil_div(rows, kRows), max_of<int64_t>(1, 65536 / (in * outs + 1)), threads, [&](int64_t first, int64_t last) {
        Buffer<Code> codes(kRows * groups * kGroup);
        Buffer<float> whole(out ? 1 : kRows * outs);  // rows that wait for their largest element
        if (!codes.data || !whole.data) {
          __atomic_store_n(&done, false, __ATOMIC_RELAXED);
          return;
        }
        const auto at = [&](int r, int64_t g) { return codes.data + (r * groups + g) * kGroup; };
        for (int64_t block = first; block < last; ++block) {
          const int64_t row = block * kRows, count = min_of<int64_t>(kRows, rows - row);
          pack_rows(x.codes + row * in, count, in, codes.data);
          for (int64_t p = 0; p < panels; ++p) {
            alignas(64) int32_t totals[kRows * kPanel];
            int8_tile(at, groups, packed.data + p * groups * kPanel * kGroup, sums.data + p * kPanel, totals);
            for (int r = 0; r < count; ++r) {
              const int64_t here = (row + r) * outs + p * kPanel;
              int8_epilogue(totals + r * kPanel, x.scale[row + r], scales.data + p * kPanel, biases.data + p * kPanel,
                            added ? added + here : nullptr, out ? out + here : whole.data + r * outs + p * kPanel,
                            outs - p * kPanel, streaming);
            }
          }
          for (int r = 0; !out && r < count; ++r) {
            float* finished = whole.data + r * outs;
            write_terms(finished, terms, row + r, rows, outs);
            writer.write(finished, finished, row + r);
          }
        }
        stream_fence();
      });
  return done;
}
