#define GOSSAMER_TARGET avx2
#include "../target-inl.h"
namespace gossamer {
const Kernels* const avx2_kernels = &avx2::table;
}
