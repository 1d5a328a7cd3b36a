#define GOSSAMER_TARGET avx512
#include "../target-inl.h"
namespace gossamer {
const Kernels* const avx512_kernels = &avx512::table;
}
