#define GOSSAMER_TARGET baseline
#include "../target-inl.h"
namespace gossamer {
const Kernels* const baseline_kernels = &baseline::table;
}
