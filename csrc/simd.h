// Sixteen lanes on every processor, by the compiler's vector types: one AVX-512 register, two of AVX2, four of SSE or
// NEON. The lane structure, and with -ffp-contract=off every rounding, is the same everywhere, so results are too.
// Included inside the namespace of one target; the only place with intrinsics.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define GOSSAMER_INLINE static inline __attribute__((always_inline))
