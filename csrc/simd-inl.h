// Sixteen lanes on every processor: one AVX-512 register, two of AVX2, four of SSE or NEON. The lane structure, and
// with -ffp-contract=off every rounding, is the same everywhere, so results are too. Part of each target's namespace.
// Intrinsics stand here, in lanes-inl.h, widen-inl.h and int8_linear-inl.h, each beside the plain form for others.

constexpr int kLanes = 16;
#if defined(__AVX512F__)
constexpr int kPartLanes = 16;
#elif defined(__AVX2__)
constexpr int kPartLanes = 8;
#else
constexpr int kPartLanes = 4;
#endif
constexpr int kParts = kLanes / kPartLanes;

template <typename T>
struct Vec {
  typedef T Part __attribute__((vector_size(kPartLanes * sizeof(T))));
  Part part[kParts];
};
typedef Vec<float> f32x16;
typedef Vec<int32_t> i32x16;
typedef Vec<uint32_t> u32x16;

#define GOSSAMER_EACH_PART _Pragma("GCC unroll 4") for (int p = 0; p < kParts; ++p)

// Part by part: a copy of the whole struct would go through the stack.
template <typename V, typename T>
GOSSAMER_INLINE V load(const T* from) {
  V v;
  GOSSAMER_EACH_PART std::memcpy(&v.part[p], reinterpret_cast<const char*>(from) + p * sizeof(v.part[p]),
                                 sizeof(v.part[p]));
  return v;
}
template <typename T, typename V>
GOSSAMER_INLINE void store(T* to, Vec<V> v) {
  GOSSAMER_EACH_PART std::memcpy(reinterpret_cast<char*>(to) + p * sizeof(v.part[p]), &v.part[p], sizeof(v.part[p]));
}
template <typename To, typename From>
GOSSAMER_INLINE To bits_of(From v) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps its size");
  To r;
  std::memcpy(&r, &v, sizeof(To));
  return r;
}
template <typename To, typename From>
GOSSAMER_INLINE To bits_of(Vec<From> v) {
  To r;
  GOSSAMER_EACH_PART r.part[p] = (decltype(r.part[p] + 0))v.part[p];
  return r;
}
template <typename T>
GOSSAMER_INLINE Vec<T> splat(T a) {
  Vec<T> r;
  GOSSAMER_EACH_PART r.part[p] = a - typename Vec<T>::Part{};
  return r;
}

GOSSAMER_INLINE u32x16 lane_numbers() {
  static const uint32_t lanes[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load<u32x16>(lanes);
}

#define GOSSAMER_ARITHMETIC(op)                            \
  template <typename T>                                    \
  GOSSAMER_INLINE Vec<T> operator op(Vec<T> a, Vec<T> b) { \
    GOSSAMER_EACH_PART a.part[p] = a.part[p] op b.part[p]; \
    return a;                                              \
  }                                                        \
  template <typename T>                                    \
  GOSSAMER_INLINE Vec<T> operator op(Vec<T> a, T b) {      \
    GOSSAMER_EACH_PART a.part[p] = a.part[p] op b;         \
    return a;                                              \
  }                                                        \
  template <typename T, typename B>                        \
  GOSSAMER_INLINE void operator op## = (Vec<T> & a, B b) { \
    a = a op b;                                            \
  }
GOSSAMER_ARITHMETIC(+)
GOSSAMER_ARITHMETIC(-)
GOSSAMER_ARITHMETIC(*)
GOSSAMER_ARITHMETIC(/)
GOSSAMER_ARITHMETIC(&)
GOSSAMER_ARITHMETIC(|)
GOSSAMER_ARITHMETIC(^)
#undef GOSSAMER_ARITHMETIC
template <typename T>
GOSSAMER_INLINE Vec<T> operator<<(Vec<T> a, int b) {
  GOSSAMER_EACH_PART a.part[p] = a.part[p] << b;
  return a;
}
template <typename T>
GOSSAMER_INLINE Vec<T> operator>>(Vec<T> a, int b) {
  GOSSAMER_EACH_PART a.part[p] = a.part[p] >> b;
  return a;
}

template <typename T>
GOSSAMER_INLINE Vec<T> operator>>(Vec<T> a, Vec<T> b) {
  GOSSAMER_EACH_PART a.part[p] = a.part[p] >> b.part[p];
  return a;
}

// Comparisons give all ones or zero per lane; select(mask, a, b) takes a where the mask is set.
#define GOSSAMER_COMPARISON(op)                            \
  template <typename T>                                    \
  GOSSAMER_INLINE i32x16 operator op(Vec<T> a, Vec<T> b) { \
    i32x16 r;                                              \
    GOSSAMER_EACH_PART r.part[p] = a.part[p] op b.part[p]; \
    return r;                                              \
  }
GOSSAMER_COMPARISON(<)
GOSSAMER_COMPARISON(>)
GOSSAMER_COMPARISON(>=)
GOSSAMER_COMPARISON(!=)
#undef GOSSAMER_COMPARISON
template <typename T>
GOSSAMER_INLINE Vec<T> select(i32x16 mask, Vec<T> a, Vec<T> b) {
  GOSSAMER_EACH_PART a.part[p] = mask.part[p] ? a.part[p] : b.part[p];
  return a;
}
template <typename T>
GOSSAMER_INLINE Vec<T> minimum(Vec<T> a, Vec<T> b) {
  return select(a < b, a, b);
}
template <typename T>
GOSSAMER_INLINE Vec<T> maximum(Vec<T> a, Vec<T> b) {
  return select(a > b, a, b);
}

#if defined(__AVX512F__)  // one instruction with the same rule; gcc makes two of a comparison and a choice
GOSSAMER_INLINE f32x16 minimum(f32x16 a, f32x16 b) {
  return {bits_of<f32x16::Part>(_mm512_min_ps(bits_of<__m512>(a.part[0]), bits_of<__m512>(b.part[0])))};
}
GOSSAMER_INLINE f32x16 maximum(f32x16 a, f32x16 b) {
  return {bits_of<f32x16::Part>(_mm512_max_ps(bits_of<__m512>(a.part[0]), bits_of<__m512>(b.part[0])))};
}
#elif defined(__AVX2__)
GOSSAMER_INLINE f32x16 minimum(f32x16 a, f32x16 b) {
  GOSSAMER_EACH_PART a.part[p] =
      bits_of<f32x16::Part>(_mm256_min_ps(bits_of<__m256>(a.part[p]), bits_of<__m256>(b.part[p])));
  return a;
}
GOSSAMER_INLINE f32x16 maximum(f32x16 a, f32x16 b) {
  GOSSAMER_EACH_PART a.part[p] =
      bits_of<f32x16::Part>(_mm256_max_ps(bits_of<__m256>(a.part[p]), bits_of<__m256>(b.part[p])));
  return a;
}
#endif

template <typename To, typename From>
GOSSAMER_INLINE Vec<To> convert(Vec<From> v) {
  Vec<To> r;
  GOSSAMER_EACH_PART r.part[p] = __builtin_convertvector(v.part[p], typename Vec<To>::Part);
  return r;
}
GOSSAMER_INLINE f32x16 to_float(i32x16 v) { return convert<float>(v); }
GOSSAMER_INLINE i32x16 truncate(f32x16 v) { return convert<int32_t>(v); }
// floor for |v| < 2^31, and rounding to the nearest even integer for |v| < 2^22.
GOSSAMER_INLINE i32x16 nearest_int(f32x16 v) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it leaves the rounded integer in the low mantissa bits
  return bits_of<i32x16>(v + magic) - bits_of<int32_t>(magic);
}

#include "widen-inl.h"

// table[index] per lane; indices are 0 .. 15, and a table has sixteen entries that may be read.
GOSSAMER_INLINE f32x16 lookup16(const float* table, i32x16 index) {
#if defined(__AVX512F__)
  return {bits_of<f32x16::Part>(_mm512_permutexvar_ps(bits_of<__m512i>(index.part[0]), _mm512_loadu_ps(table)))};
#elif defined(__AVX2__)
  const __m256 low = _mm256_loadu_ps(table), high = _mm256_loadu_ps(table + 8);
  f32x16 r;
  GOSSAMER_EACH_PART {
    const __m256i k = bits_of<__m256i>(index.part[p]);
    const __m256 in_high = _mm256_castsi256_ps(_mm256_slli_epi32(k, 28));  // the sign bit: index >= 8
    r.part[p] = bits_of<f32x16::Part>(
        _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, k), _mm256_permutevar8x32_ps(high, k), in_high));
  }
  return r;
#else
  int32_t k[kLanes];
  float found[kLanes];
  store(k, index);
  for (int lane = 0; lane < kLanes; ++lane) found[lane] = table[k[lane]];
  return load<f32x16>(found);
#endif
}

// table[index] per lane, for tables of any length.
GOSSAMER_INLINE f32x16 lookup(const float* table, i32x16 index) {
#if defined(__AVX512F__)
  return {bits_of<f32x16::Part>(_mm512_i32gather_ps(bits_of<__m512i>(index.part[0]), table, 4))};
#elif defined(__AVX2__)
  f32x16 r;
  GOSSAMER_EACH_PART r.part[p] = bits_of<f32x16::Part>(_mm256_i32gather_ps(table, bits_of<__m256i>(index.part[p]), 4));
  return r;
#else
  int32_t k[kLanes];
  float found[kLanes];
  store(k, index);
  for (int lane = 0; lane < kLanes; ++lane) found[lane] = table[k[lane]];
  return load<f32x16>(found);
#endif
}

// Elements of gathered rows as floats; bfloat16 is held as its bits.
GOSSAMER_INLINE f32x16 load_float(const float* x) { return load<f32x16>(x); }
GOSSAMER_INLINE f32x16 load_float(const uint16_t* bf16) { return bits_of<f32x16>(widen(bf16) << 16); }
GOSSAMER_INLINE f32x16 load_float(const int8_t* x) { return to_float(widen(x)); }
GOSSAMER_INLINE float load_scalar(const float* x) { return *x; }
GOSSAMER_INLINE float load_scalar(const uint16_t* bf16) { return bits_of<float>(uint32_t(*bf16) << 16); }
GOSSAMER_INLINE float load_scalar(const int8_t* x) { return float(*x); }

// float to bfloat16, to nearest even; NaN stays NaN.
GOSSAMER_INLINE uint16_t to_bf16(float x) {
  const uint32_t u = bits_of<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t((u >> 16) | 0x40);
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}
GOSSAMER_INLINE void store_float(uint16_t* to, f32x16 v) {
  const u32x16 u = bits_of<u32x16>(v);
  const u32x16 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const i32x16 is_nan = v != v;
  narrow(to, bits_of<i32x16>(select(is_nan, (u >> 16) | 0x40u, rounded)));
}
GOSSAMER_INLINE void store_scalar(float* to, float v) { *to = v; }
GOSSAMER_INLINE void store_scalar(uint16_t* to, float v) { *to = to_bf16(v); }

#include "stream-inl.h"

// One bit per lane that is set, and back.
GOSSAMER_INLINE uint16_t lane_bits(i32x16 mask) {
#if defined(__AVX512F__)
  const __m512i v = bits_of<__m512i>(mask.part[0]);
  return uint16_t(_mm512_test_epi32_mask(v, v));
#elif defined(__AVX2__)
  return uint16_t(_mm256_movemask_ps(bits_of<__m256>(mask.part[0])) |
                  (_mm256_movemask_ps(bits_of<__m256>(mask.part[kParts - 1])) << 8));
#else
  uint16_t r = 0;
  for (int k = 0; k < kLanes; ++k) r |= uint16_t((mask.part[k / kPartLanes][k % kPartLanes] & 1) << k);
  return r;
#endif
}
GOSSAMER_INLINE i32x16 bits_to_lanes(uint16_t bits) {
  static const int32_t lane_bit[kLanes] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
  return (splat(int32_t(bits)) & load<i32x16>(lane_bit)) != splat(0);
}

// Sums and extremes over lanes; the sum always as the same tree.
GOSSAMER_INLINE float sum_lanes(f32x16 v) {  // lane k with k + 8, then with k + 4, k + 2, k + 1
#if defined(__AVX2__)
#if defined(__AVX512F__)
  const __m512 all = bits_of<__m512>(v.part[0]);
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
#else
  const __m256 eight = _mm256_add_ps(bits_of<__m256>(v.part[0]), bits_of<__m256>(v.part[kParts - 1]));
#endif
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
#else
  const f32x16::Part four = (v.part[0] + v.part[2 % kParts]) + (v.part[1 % kParts] + v.part[3 % kParts]);
#endif
  return (four[0] + four[2]) + (four[1] + four[3]);
}
template <typename T>
GOSSAMER_INLINE T min_of(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
GOSSAMER_INLINE T max_of(T a, T b) {
  return b > a ? b : a;
}
template <typename T>
GOSSAMER_INLINE T max_lanes(Vec<T> v) {
  T a[kLanes];
  store(a, v);
  for (int k = 1; k < kLanes; ++k) a[0] = max_of(a[0], a[k]);
  return a[0];
}
#if defined(__AVX512F__)
GOSSAMER_INLINE int32_t max_lanes(i32x16 v) { return _mm512_reduce_max_epi32(bits_of<__m512i>(v.part[0])); }
#endif
template <typename T>
GOSSAMER_INLINE T min_lanes(Vec<T> v) {
  T a[kLanes];
  store(a, v);
  for (int k = 1; k < kLanes; ++k) a[0] = min_of(a[0], a[k]);
  return a[0];
}
GOSSAMER_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Scratch memory of one call, aligned to a cache line and zeroed; `data` is null when there is none left.
template <typename T>
struct Buffer {
  T* data;
  explicit Buffer(int64_t count) {
    const size_t bytes = (size_t(count) * sizeof(T) + 63) / 64 * 64 + 64;
    data = static_cast<T*>(aligned_alloc(64, bytes));
    if (data) std::memset(data, 0, bytes);
  }
  ~Buffer() { free(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

#include "lanes-inl.h"
