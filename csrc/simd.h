// What simd-inl.h needs from outside any target's namespace.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#if defined(GOSSAMER_EMULATE)
#include "emulate_avx512.h"
#elif defined(__AVX2__)
#include <immintrin.h>
#endif

#define GOSSAMER_INLINE static inline __attribute__((always_inline))
#define GOSSAMER_INLINED __attribute__((always_inline))  // of a member, or after the arguments of a lambda
