// AVX-512 lane by lane, for tests on a processor without it: every intrinsic that the kernels use, by the same name.
// Names in this namespace hide the compiler's, so kernels need not know. Slow; built by `make emulate` alone.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#undef _mm512_setr_epi32  // macros among them
#undef _mm512_i32gather_ps

#define __AVX512F__ 1
#define __AVX512BW__ 1
#if GOSSAMER_EMULATE == 2
#define __AVX512VNNI__ 1
#endif

namespace gossamer {

template <typename T, int Bytes = 64>
struct Emulated {
  static constexpr int count = Bytes / int(sizeof(T));
  T lane[count];
  Emulated() = default;
  template <typename V>
  explicit Emulated(V v) {
    static_assert(sizeof(V) == Bytes, "a register keeps its size");
    std::memcpy(lane, &v, Bytes);
  }
  template <typename V>
  operator V() const {
    static_assert(sizeof(V) == Bytes, "a register keeps its size");
    V v;
    std::memcpy(&v, lane, Bytes);
    return v;
  }
};
template <typename T, int Bytes = 64, typename F>
static Emulated<T, Bytes> each_lane(const F& f) {
  Emulated<T, Bytes> r;
  for (int k = 0; k < r.count; ++k) r.lane[k] = T(f(k));
  return r;
}

// Loads, stores, constants and parts.
template <typename T>
static Emulated<T> load_lanes(const void* from, uint64_t mask = ~uint64_t(0), T rest = 0) {
  return each_lane<T>([&](int k) {
    T value = rest;
    if (mask >> k & 1) std::memcpy(&value, static_cast<const T*>(from) + k, sizeof(T));
    return value;
  });
}
template <typename T, typename V>
static void store_lanes(void* to, V v, uint64_t mask = ~uint64_t(0)) {
  const Emulated<T> x(v);
  for (int k = 0; k < x.count; ++k)
    if (mask >> k & 1) std::memcpy(static_cast<T*>(to) + k, x.lane + k, sizeof(T));
}
static inline __m512 _mm512_loadu_ps(const void* p) { return load_lanes<float>(p); }
static inline __m512i _mm512_loadu_si512(const void* p) { return load_lanes<int64_t>(p); }
static inline __m512 _mm512_mask_loadu_ps(__m512 rest, __mmask16 mask, const void* p) {
  return load_lanes<float>(p, mask, rest[0]);  // kernels give one value for all lanes
}
static inline __m512i _mm512_maskz_loadu_epi8(__mmask64 mask, const void* p) { return load_lanes<int8_t>(p, mask); }
static inline __m512 _mm512_i32gather_ps(__m512i index, const float* p, int scale) {
  const Emulated<int32_t> from(index);
  return each_lane<float>([&](int k) { return p[int64_t(from.lane[k]) * scale / 4]; });
}
static inline void _mm512_storeu_ps(void* p, __m512 v) { store_lanes<float>(p, v); }
static inline void _mm512_stream_ps(void* p, __m512 v) { store_lanes<float>(p, v); }
static inline void _mm512_storeu_si512(void* p, __m512i v) { store_lanes<int64_t>(p, v); }
static inline void _mm512_mask_storeu_ps(void* p, __mmask16 mask, __m512 v) { store_lanes<float>(p, v, mask); }
static inline __m512 _mm512_setzero_ps() { return __m512{}; }
static inline __m512i _mm512_setzero_si512() { return __m512i{}; }
static inline __m512 _mm512_set1_ps(float a) {
  return each_lane<float>([a](int) { return a; });
}
static inline __m512i _mm512_set1_epi8(int a) {
  return each_lane<int8_t>([a](int) { return a; });
}
static inline __m512i _mm512_set1_epi32(int a) {
  return each_lane<int32_t>([a](int) { return a; });
}
template <typename... T>
static __m512i _mm512_setr_epi32(T... a) {
  const int32_t lanes[16] = {a...};
  return load_lanes<int32_t>(lanes);
}
template <typename Half, typename V>
static Half half_of(V v, int which) {
  Half half;
  std::memcpy(&half, reinterpret_cast<const char*>(&v) + 32 * which, 32);
  return half;
}
static inline __m256 _mm512_castps512_ps256(__m512 v) { return half_of<__m256>(v, 0); }
static inline __m256 _mm512_extractf32x8_ps(__m512 v, int which) { return half_of<__m256>(v, which); }
static inline __m256i _mm512_castsi512_si256(__m512i v) { return half_of<__m256i>(v, 0); }
static inline __m256i _mm512_extracti64x4_epi64(__m512i v, int which) { return half_of<__m256i>(v, which); }
static inline __m512 _mm512_insertf32x8(__m512 v, __m256 half, int which) {
  std::memcpy(reinterpret_cast<char*>(&v) + 32 * which, &half, 32);
  return v;
}
static inline __m512 _mm512_castps256_ps512(__m256 low) { return _mm512_insertf32x8(__m512{}, low, 0); }

// Arithmetic: lane k of the result is f(lane k of a, lane k of b).
#define GOSSAMER_EMULATE_LANES(Register, T, name, expression)    \
  static inline Register name(Register first, Register second) { \
    const Emulated<T> x(first), y(second);                       \
    return each_lane<T>([&](int k) {                             \
      const T a = x.lane[k], b = y.lane[k];                      \
      return expression;                                         \
    });                                                          \
  }
GOSSAMER_EMULATE_LANES(__m512i, uint32_t, _mm512_add_epi32, a + b)
GOSSAMER_EMULATE_LANES(__m512i, uint64_t, _mm512_xor_si512, a ^ b)
GOSSAMER_EMULATE_LANES(__m512, float, _mm512_min_ps, a < b ? a : b)
GOSSAMER_EMULATE_LANES(__m512, float, _mm512_max_ps, a > b ? a : b)
#undef GOSSAMER_EMULATE_LANES
static inline __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  return each_lane<float>([&](int k) { return __builtin_fmaf(a[k], b[k], c[k]); });
}
static inline __m512i _mm512_srai_epi32(__m512i v, unsigned by) {
  const Emulated<int32_t> x(v);
  return each_lane<int32_t>([&](int k) { return x.lane[k] >> by; });
}
static inline __m512i _mm512_madd_epi16(__m512i a, __m512i b) {
  const Emulated<int16_t> x(a), y(b);
  return each_lane<int32_t>([&](int k) {
    return int32_t(uint32_t(x.lane[2 * k] * y.lane[2 * k]) + uint32_t(x.lane[2 * k + 1] * y.lane[2 * k + 1]));
  });
}
static inline __m512i _mm512_dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
  const Emulated<uint32_t> from(sum);
  const Emulated<uint8_t> x(a);
  const Emulated<int8_t> y(b);
  return each_lane<uint32_t>([&](int k) {
    uint32_t total = from.lane[k];
    for (int j = 4 * k; j < 4 * k + 4; ++j) total += uint32_t(int32_t(x.lane[j]) * int32_t(y.lane[j]));
    return total;
  });
}
static inline int _mm512_reduce_add_epi32(__m512i v) {
  const Emulated<uint32_t> x(v);
  uint32_t sum = 0;
  for (uint32_t lane : x.lane) sum += lane;
  return int(sum);
}
static inline int _mm512_reduce_max_epi32(__m512i v) {
  const Emulated<int32_t> x(v);
  int32_t top = x.lane[0];
  for (int32_t lane : x.lane) top = lane > top ? lane : top;
  return top;
}

// Masks.
static inline __mmask16 _mm512_test_epi32_mask(__m512i a, __m512i b) {
  const Emulated<uint32_t> x(a), y(b);
  unsigned mask = 0;
  for (int k = 0; k < 16; ++k) mask |= unsigned((x.lane[k] & y.lane[k]) != 0) << k;
  return __mmask16(mask);
}
static inline __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int predicate) {
  if (predicate != _CMP_NEQ_UQ) __builtin_trap();
  unsigned mask = 0;
  for (int k = 0; k < 16; ++k) mask |= unsigned(a[k] != b[k]) << k;
  return __mmask16(mask);
}
template <typename T, typename V>
static V compress_lanes(__mmask16 mask, V v) {
  const Emulated<T> x(v);
  Emulated<T> r(V{});
  for (int k = 0, n = 0; k < 16; ++k)
    if (mask >> k & 1) r.lane[n++] = x.lane[k];
  return r;
}
static inline __m512 _mm512_maskz_compress_ps(__mmask16 mask, __m512 v) { return compress_lanes<float>(mask, v); }
static inline __m512i _mm512_maskz_compress_epi32(__mmask16 mask, __m512i v) {
  return compress_lanes<int32_t>(mask, v);
}

// Wider and narrower lanes.
template <typename To, typename From, int ToBytes, int FromBytes, typename V>
static Emulated<To, ToBytes> convert_lanes(V v) {
  const Emulated<From, FromBytes> x(v);
  return each_lane<To, ToBytes>([&](int k) { return x.lane[k]; });
}
static inline __m512i _mm512_cvtepi8_epi16(__m256i v) { return convert_lanes<int16_t, int8_t, 64, 32>(v); }
static inline __m512i _mm512_cvtepi8_epi32(__m128i v) { return convert_lanes<int32_t, int8_t, 64, 16>(v); }
static inline __m512i _mm512_cvtepu8_epi32(__m128i v) { return convert_lanes<int32_t, uint8_t, 64, 16>(v); }
static inline __m512i _mm512_cvtepu16_epi32(__m256i v) { return convert_lanes<int32_t, uint16_t, 64, 32>(v); }
static inline __m128i _mm512_cvtepi32_epi8(__m512i v) { return convert_lanes<int8_t, int32_t, 16, 64>(v); }
static inline __m256i _mm512_cvtepi32_epi16(__m512i v) { return convert_lanes<int16_t, int32_t, 32, 64>(v); }
template <typename To, typename From>
static __m512i pack_lanes(__m512i a, __m512i b) {  // saturated, and within each quarter
  const Emulated<From> x(a), y(b);
  constexpr int quarter = 16 / int(sizeof(From));
  constexpr From top = From((1u << (8 * sizeof(To) - 1)) - 1);
  return each_lane<To>([&](int k) {
    const int q = k / (2 * quarter), at = k % (2 * quarter);
    const From value = at < quarter ? x.lane[q * quarter + at] : y.lane[q * quarter + at - quarter];
    return value > top ? top : value < From(-top - 1) ? From(-top - 1) : value;
  });
}
static inline __m512i _mm512_packs_epi32(__m512i a, __m512i b) { return pack_lanes<int16_t, int32_t>(a, b); }
static inline __m512i _mm512_packs_epi16(__m512i a, __m512i b) { return pack_lanes<int8_t, int16_t>(a, b); }

// Lanes that change places.
template <typename T>
static __m512i unpack_lanes(__m512i a, __m512i b, int high) {  // within each quarter, its low or high half
  const Emulated<T> x(a), y(b);
  constexpr int quarter = 16 / int(sizeof(T));
  return each_lane<T>([&](int k) {
    const int from = k / quarter * quarter + high * quarter / 2 + k % quarter / 2;
    return k % 2 ? y.lane[from] : x.lane[from];
  });
}
static inline __m512i _mm512_unpacklo_epi8(__m512i a, __m512i b) { return unpack_lanes<int8_t>(a, b, 0); }
static inline __m512i _mm512_unpackhi_epi8(__m512i a, __m512i b) { return unpack_lanes<int8_t>(a, b, 1); }
static inline __m512i _mm512_unpacklo_epi16(__m512i a, __m512i b) { return unpack_lanes<int16_t>(a, b, 0); }
static inline __m512i _mm512_unpackhi_epi16(__m512i a, __m512i b) { return unpack_lanes<int16_t>(a, b, 1); }
static inline __m512i _mm512_unpacklo_epi32(__m512i a, __m512i b) { return unpack_lanes<int32_t>(a, b, 0); }
static inline __m512i _mm512_unpackhi_epi32(__m512i a, __m512i b) { return unpack_lanes<int32_t>(a, b, 1); }
static inline __m512i _mm512_unpacklo_epi64(__m512i a, __m512i b) { return unpack_lanes<int64_t>(a, b, 0); }
static inline __m512i _mm512_unpackhi_epi64(__m512i a, __m512i b) { return unpack_lanes<int64_t>(a, b, 1); }
template <typename T, typename V>
static V shuffle_quarters(V a, V b, int order) {
  const Emulated<T> x(a), y(b);
  return each_lane<T>([&](int k) {
    const int from = (order >> (k / 4 * 2) & 3) * 4 + k % 4;
    return k < 8 ? x.lane[from] : y.lane[from];
  });
}
static inline __m512i _mm512_shuffle_i32x4(__m512i a, __m512i b, int order) {
  return shuffle_quarters<int32_t>(a, b, order);
}
static inline __m512 _mm512_shuffle_f32x4(__m512 a, __m512 b, int order) {
  return shuffle_quarters<float>(a, b, order);
}
static inline __m512 _mm512_permute_ps(__m512 v, int order) {
  return each_lane<float>([&](int k) { return v[k / 4 * 4 + (order >> (k % 4 * 2) & 3)]; });
}
static inline __m512 _mm512_permutexvar_ps(__m512i index, __m512 v) {
  const Emulated<int32_t> from(index);
  return each_lane<float>([&](int k) { return v[from.lane[k] & 15]; });
}
static inline __m512i _mm512_permutexvar_epi32(__m512i index, __m512i v) {
  const Emulated<int32_t> from(index), x(v);
  return each_lane<int32_t>([&](int k) { return x.lane[from.lane[k] & 15]; });
}

}  // namespace gossamer
