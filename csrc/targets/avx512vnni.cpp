#define GOSSAMER_TARGET avx512vnni
#include "../target-inl.h"
namespace gossamer {
const Kernels* const avx512vnni_kernels = &avx512vnni::table;
}
