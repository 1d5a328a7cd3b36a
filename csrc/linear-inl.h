// out = x W^T + bias in float32, of rows that the calling thread has just made and still has in its cache. The weights
// are laid out once, in panels of outputs that all threads read; rows times a panel accumulate in registers, a slice of
// k at a time so that the panel's slice stays in the first-level cache. Every sum runs over k in order, hence bits
// depend on neither threads nor processor. Where most of the rows is zero, as after ReLU and dropout, only what is not
// is multiplied, unless a weight is infinite or NaN.

// A block of rows and a panel of outputs, as many as registers hold the sums of.
#if defined(__AVX512F__)
constexpr int kRows = 6, kPanelVectors = 4;
#elif defined(__AVX2__)
constexpr int kRows = 6, kPanelVectors = 1;
#else
constexpr int kRows = 4, kPanelVectors = 1;
#endif
constexpr int kPanel = kPanelVectors * kLanes;
constexpr int kWideVectors = 8 / kParts;  // eight registers hold the sums of one row
constexpr int kWidePanels = kWideVectors / kPanelVectors;
constexpr int64_t kSliceFloats = 12288;     // of panels: about the first-level cache
constexpr int64_t kStepFloats = 96 * 1024;  // of rows and what belongs to them: stays in the second-level cache
static_assert(kWidePanels * kPanelVectors == kWideVectors, "whole panels");

GOSSAMER_INLINE f32x16 fused(f32x16 a, f32x16 b, f32x16 c) {  // a * b + c, rounded once on every processor
#if defined(__AVX512F__)
  return {bits_of<f32x16::Part>(
      _mm512_fmadd_ps(bits_of<__m512>(a.part[0]), bits_of<__m512>(b.part[0]), bits_of<__m512>(c.part[0])))};
#elif defined(__FMA__)
  GOSSAMER_EACH_PART a.part[p] = bits_of<f32x16::Part>(
      _mm256_fmadd_ps(bits_of<__m256>(a.part[p]), bits_of<__m256>(b.part[p]), bits_of<__m256>(c.part[p])));
  return a;
#else
  for (int k = 0; k < kLanes; ++k) {
    const int p = k / kPartLanes, lane = k % kPartLanes;
    a.part[p][lane] = __builtin_fmaf(a.part[p][lane], b.part[p][lane], c.part[p][lane]);
  }
  return a;
#endif
}

// The weights of all products of the same rows, one after the other, each as panels [panel][in][kPanel] that are zero
// beyond the last output.
struct Panels {
  const Product* products;
  int count;
  int64_t rows, in;  // of x
  Buffer<float> data;
  bool finite;  // zero times a weight is zero

  static int64_t floats(const Product* products, int count, int64_t in) {
    int64_t sum = 0;
    for (int k = 0; k < count; ++k) sum += ceil_div(products[k].outs, kPanel) * kPanel * in;
    return sum;
  }
  Panels(const Product* all, int n, int64_t height, int64_t columns, int threads)
      : products(all), count(n), rows(height), in(columns), data(floats(all, n, columns)), finite(true) {
    for (int k = 0; data.data && k < count; ++k) {
      const Product& one = products[k];
      float* to = data.data + floats(products, k, in);
      parallel_for(one.outs, 1 + 65536 / (in + 1), threads, [&](int64_t first, int64_t last) {
        for (int64_t o = first; o < last; ++o) fill(one.weight + o * in, to + o / kPanel * in * kPanel + o % kPanel);
      });
    }
  }
  // Rows that are multiplied at a time: whole blocks of them, on every processor.
  int64_t step() const { return count ? max_of<int64_t>(1, min_of<int64_t>(8, kStepFloats / 12 / (in + 1))) * 12 : 0; }
  void fill(const float* row, float* to) {
    int32_t top = 0;
    for (int64_t k = 0; k < in; ++k) {
      to[k * kPanel] = row[k];
      top = max_of(top, bits_of<int32_t>(row[k]) & 0x7fffffff);
    }
    if (top >= 0x7f800000) __atomic_store_n(&finite, false, __ATOMIC_RELAXED);
  }
};

// For each mask of eight lanes, the lanes that are set.
struct Squeezed {
  uint8_t order[256][8];
  constexpr Squeezed() : order() {
    for (int mask = 0; mask < 256; ++mask)
      for (int lane = 0, n = 0; lane < 8; ++lane)
        if (mask >> lane & 1) order[mask][n++] = uint8_t(lane);
  }
};
static constexpr Squeezed kSqueezed;

// What is not zero of some rows, slice by slice of k: values and their k within the slice.
struct Nonzeros {
  Buffer<float> values;
  Buffer<uint16_t> at;
  Buffer<int64_t> ends;  // [rows, slices]
  int64_t in, slice, slices;
  Nonzeros(int64_t height, int64_t columns, int64_t slice_rows)
      : values(height * padded(columns)),
        at(height * padded(columns)),
        ends(height * ceil_div(columns, slice_rows)),
        in(columns),
        slice(slice_rows),
        slices(ceil_div(columns, slice_rows)) {}
  bool enough() const { return values.data && at.data && ends.data; }

  void fill(const float* x, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) {
      int64_t n = r * padded(in);
      for (int64_t s = 0; s < slices; ++s) {
        for (int64_t k = s * slice; k < min_of(in, (s + 1) * slice); k += kLanes)
          n += squeeze(load_part(x + r * in + k, in - k), uint16_t(k - s * slice), n);
        ends.data[r * slices + s] = n;
      }
    }
  }
  // Appends those of sixteen elements that are not zero and says how many.
  int squeeze(f32x16 v, uint16_t k, int64_t n) {
#if defined(__AVX512F__)
    const __mmask16 mask = _mm512_cmp_ps_mask(bits_of<__m512>(v.part[0]), _mm512_setzero_ps(), _CMP_NEQ_UQ);
    const __m512i index = _mm512_add_epi32(bits_of<__m512i>(lane_numbers().part[0]), _mm512_set1_epi32(k));
    _mm512_storeu_ps(values.data + n, _mm512_maskz_compress_ps(mask, bits_of<__m512>(v.part[0])));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at.data + n),
                        _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(mask, index)));
    return __builtin_popcount(mask);
#elif defined(__AVX2__)
    int count = 0;
    GOSSAMER_EACH_PART {
      const __m256 part = bits_of<__m256>(v.part[p]);
      const int mask = _mm256_movemask_ps(_mm256_cmp_ps(part, _mm256_setzero_ps(), _CMP_NEQ_UQ));
      const __m128i first = load64(kSqueezed.order[mask]);
      const __m128i index = _mm_add_epi16(_mm_cvtepu8_epi16(first), _mm_set1_epi16(int16_t(k + p * kPartLanes)));
      _mm256_storeu_ps(values.data + n + count, _mm256_permutevar8x32_ps(part, _mm256_cvtepu8_epi32(first)));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(at.data + n + count), index);
      count += __builtin_popcount(mask);
    }
    return count;
#else
    float part[kLanes];
    store(part, v);
    int count = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      values.data[n + count] = part[lane];
      at.data[n + count] = uint16_t(k + lane);
      count += part[lane] != 0.0f;
    }
    return count;
#endif
  }
};

// Whether so few are not zero that finding them pays, as far as the first rows tell.
static bool mostly_zero(const float* x, int64_t rows, int64_t in) {
  const int64_t n = min_of<int64_t>(rows, 8) * in;
  int64_t found = 0;
  for (int64_t k = 0; k < n; k += kLanes)
    found += __builtin_popcount(lane_bits(load_part(x + k, n - k) != splat(0.0f)));
  return found * 8 < n * 3;
}

// sums[r, v] of R rows and V vectors of a panel, over `count` k; the first slice does not read them.
template <int R, int V>
GOSSAMER_INLINE void linear_tile(const float* x, int64_t in, const float* panel, int64_t count, bool first, float* sums,
                                 int64_t stride) {
  f32x16 acc[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[r][v] = first ? splat(0.0f) : load<f32x16>(sums + r * stride + v * kLanes);
  for (int64_t k = 0; k < count; ++k) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const f32x16 all = splat(x[r * in + k]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[r][v] = fused(all, load<f32x16>(panel + k * kPanel + v * kLanes), acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(sums + r * stride + v * kLanes, acc[r][v]);
}

// The same of one row and V vectors of several panels, over the `count` elements that are not zero.
template <int V>
GOSSAMER_INLINE void nonzero_tile(const float* values, const uint16_t* at, int64_t count, const float* panels,
                                  int64_t panel_floats, bool first, float* sums) {
  f32x16 acc[V];
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) acc[v] = first ? splat(0.0f) : load<f32x16>(sums + v * kLanes);
  for (int64_t i = 0; i < count; ++i) {
    const f32x16 all = splat(values[i]);
    const float* from = panels + int64_t(at[i]) * kPanel;
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v)
      acc[v] = fused(all, load<f32x16>(from + v / kPanelVectors * panel_floats + v % kPanelVectors * kLanes), acc[v]);
  }
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) store(sums + v * kLanes, acc[v]);
}

// One thread's hands: multiplies rows by all products.
struct Multiplier {
  static constexpr int64_t kSumsStride = kWideVectors * kLanes;
  const Panels& panels;
  Nonzeros nonzeros;
  Buffer<float> sums;  // [rows of a step, kSumsStride]
  explicit Multiplier(const Panels& all)
      : panels(all), nonzeros(all.step(), all.in, kSliceFloats / kSumsStride), sums(all.step() * kSumsStride) {}
  bool enough() const { return nonzeros.enough() && sums.data; }

  // x holds rows first, first + 1, .. of the outs.
  void multiply(const float* x, int64_t first, int64_t rows) {
    for (int64_t done = 0; panels.count && done < rows; done += panels.step()) {
      const int64_t n = min_of(panels.step(), rows - done), in = panels.in;
      const bool sparse = panels.finite && mostly_zero(x + done * in, n, in);
      if (sparse) nonzeros.fill(x + done * in, n);
      for (int k = 0; k < panels.count; ++k) {
        const Product& one = panels.products[k];
        const float* data = panels.data.data + Panels::floats(panels.products, k, in);
        const int64_t step = sparse ? kWidePanels * kPanel : kPanel;
        for (int64_t o = 0; o < one.outs; o += step, data += step * in) {
          const int64_t left = min_of(step, one.outs - o), vectors = ceil_div(left, kLanes);
          if (sparse) add_nonzeros(n, data, vectors);
          else add(x + done * in, n, data, vectors);
          finish(one, o, left, first + done, n);
        }
      }
    }
  }
  void add(const float* x, int64_t rows, const float* panel, int64_t vectors) {
    const int64_t in = panels.in, slice = kSliceFloats / kPanel;
    for (int64_t k = 0; k < in; k += slice) {
      const int64_t count = min_of(slice, in - k);
      by_vectors<kPanelVectors>(vectors, [&](auto tag) {
        constexpr int V = decltype(tag)::value;
        int64_t r = 0;
        for (; r + kRows <= rows; r += kRows)
          linear_tile<kRows, V>(x + r * in + k, in, panel + k * kPanel, count, k == 0, sums.data + r * kSumsStride,
                                kSumsStride);
        for (; r < rows; ++r)
          linear_tile<1, V>(x + r * in + k, in, panel + k * kPanel, count, k == 0, sums.data + r * kSumsStride,
                            kSumsStride);
      });
    }
  }
  void add_nonzeros(int64_t rows, const float* panel, int64_t vectors) {
    const int64_t slices = nonzeros.slices, stride = padded(panels.in);
    for (int64_t s = 0; s < slices; ++s)
      by_vectors<kWideVectors>(vectors, [&](auto tag) {
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t begin = s ? nonzeros.ends.data[r * slices + s - 1] : r * stride;
          nonzero_tile<decltype(tag)::value>(
              nonzeros.values.data + begin, nonzeros.at.data + begin, nonzeros.ends.data[r * slices + s] - begin,
              panel + s * nonzeros.slice * kPanel, panels.in * kPanel, s == 0, sums.data + r * kSumsStride);
        }
      });
  }
  void finish(const Product& one, int64_t o, int64_t left, int64_t first, int64_t rows) {
    const bool streaming = one.outs % kLanes == 0 && streams(one.out, panels.rows * one.outs);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < left; c += kLanes) {
        f32x16 y = load<f32x16>(sums.data + r * kSumsStride + c);
        if (one.bias) y = y + load_part(one.bias + o + c, left - c);
        put_part(one.out + (first + r) * one.outs + o + c, y, left - c, streaming);
      }
  }
};
