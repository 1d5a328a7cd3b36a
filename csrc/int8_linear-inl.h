// out[i, o] = x_scale[i] * w_scale[o] * sum over k of x[i, k] * w[o, k] + bias[o], the sum in int32 and exact.
// The weights are laid out so that one register holds a few consecutive k of sixteen outputs; a block of rows times a
// panel of outputs accumulates in registers, and the epilogue runs there too: no int32 tensor is ever written.

#if defined(__AVX512VNNI__)
constexpr int kGroup = 4;  // u8 x s8, four products an instruction and lane; x + 128 makes the codes unsigned
typedef int8_t Code;
GOSSAMER_INLINE i32x16 dot_group(i32x16 acc, i32x16 x, const Code* w) {
  const i32x16 weights = load<i32x16>(w);
  acc.part[0] = bits_of<i32x16::Part>(_mm512_dpbusd_epi32(
      bits_of<__m512i>(acc.part[0]), bits_of<__m512i>(x.part[0]), bits_of<__m512i>(weights.part[0])));
  return acc;
}
#else
constexpr int kGroup = 2;  // s16 x s16, two products an instruction and lane: nothing saturates
typedef int16_t Code;
GOSSAMER_INLINE i32x16 dot_group(i32x16 acc, i32x16 x, const Code* w) {
#if defined(__AVX512BW__)
  const i32x16 weights = load<i32x16>(w);
  acc.part[0] += bits_of<i32x16::Part>(_mm512_madd_epi16(bits_of<__m512i>(x.part[0]), bits_of<__m512i>(weights.part[0])));
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

#if defined(__AVX512F__)
constexpr int kRows = 6, kPanelVectors = 4;
#else
constexpr int kRows = 4, kPanelVectors = 1;
#endif
constexpr int kPanel = kPanelVectors * kLanes;

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

// Rows first .. first + kRows as groups of codes; missing rows and the tail of k are zero codes.
GOSSAMER_INLINE void pack_rows(const int8_t* x, int64_t rows, int64_t in, Code* packed) {
  const int64_t padded = ceil_div(in, kGroup) * kGroup;
  for (int64_t r = 0; r < kRows; ++r) {
    Code* row = packed + r * padded;
    for (int64_t k = 0; k < padded; ++k) {
      const int8_t value = r < rows && k < in ? x[r * in + k] : int8_t(0);
      row[k] = kGroup == 4 ? Code(value ^ int8_t(-128)) : Code(value);
    }
  }
}

GOSSAMER_INLINE void int8_tile(const Code* x, int64_t groups, const Code* panel, const int32_t* sums,
                               i32x16 (&acc)[kRows][kPanelVectors]) {
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kPanelVectors; ++v)
      acc[r][v] = kGroup == 4 ? load<i32x16>(sums + v * kLanes) * -128 : splat(0);
  for (int64_t g = 0; g < groups; ++g) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      int32_t group;
      std::memcpy(&group, x + (r * groups + g) * kGroup, 4);
      const i32x16 all = splat(group);
#pragma GCC unroll 8
      for (int v = 0; v < kPanelVectors; ++v)
        acc[r][v] = dot_group(acc[r][v], all, panel + (g * kPanel + v * kLanes) * kGroup);
    }
  }
}

static void int8_linear(const int8_t* x, const float* x_scale, const int8_t* w, const float* w_scale, const float* bias,
                        float* out, int64_t rows, int64_t in, int64_t outs, int threads) {
  const int64_t groups = ceil_div(in, kGroup), panels = ceil_div(outs, kPanel), padded = panels * kPanel;
  Code* packed = new Code[size_t(padded * groups * kGroup + 64)];
  int32_t* sums = new int32_t[size_t(padded)];
  float* scales = new float[size_t(2 * padded)]();
  float* biases = scales + padded;
  pack_weights(w, in, outs, packed, sums);
  std::memcpy(scales, w_scale, size_t(outs) * sizeof(float));
  if (bias) std::memcpy(biases, bias, size_t(outs) * sizeof(float));
  parallel_for(ceil_div(rows, kRows), max_of<int64_t>(1, 65536 / (in * outs + 1)), threads,
               [&](int64_t first, int64_t last) {
    Code* codes = new Code[size_t(kRows * groups * kGroup + 64)];
    for (int64_t block = first; block < last; ++block) {
      const int64_t row = block * kRows, count = min_of<int64_t>(kRows, rows - row);
      pack_rows(x + row * in, count, in, codes);
      for (int64_t p = 0; p < panels; ++p) {
        i32x16 acc[kRows][kPanelVectors];
        int8_tile(codes, groups, packed + p * groups * kPanel * kGroup, sums + p * kPanel, acc);
        for (int r = 0; r < count; ++r) {
          for (int v = 0; v < kPanelVectors; ++v) {
            const int64_t o = p * kPanel + v * kLanes;
            const f32x16 scaled = to_float(acc[r][v]) * x_scale[row + r] * load<f32x16>(scales + o);
            const f32x16 y = scaled + load<f32x16>(biases + o);
            float* to = out + (row + r) * outs + o;
            if (o + kLanes <= outs) store(to, y);
            else if (o < outs) std::memcpy(to, &y, size_t(outs - o) * sizeof(float));
          }
        }
      }
    }
    delete[] codes;
  });
  delete[] scales;
  delete[] sums;
  delete[] packed;
}
