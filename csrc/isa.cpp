// Which instruction sets were built, which this processor has, and which one is in use.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace gossamer {

#if !defined(GOSSAMER_X86)
const Kernels* const avx2_kernels = nullptr;
const Kernels* const avx512_kernels = nullptr;
const Kernels* const avx512vnni_kernels = nullptr;
#endif

namespace {

constexpr int kLevels = 4;

bool supported(int level) {
#if defined(GOSSAMER_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#if defined(GOSSAMER_EMULATED)  // AVX-512 as loops over lanes
  const bool avx512 = avx2, vnni = avx2;
#else
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
#endif
  const bool has[kLevels] = {true, avx2, avx512, vnni};
  return has[level];
#else
  return level == 0;
#endif
}

const Kernels* table_of(int level) {
  const Kernels* const tables[kLevels] = {baseline_kernels, avx2_kernels, avx512_kernels, avx512vnni_kernels};
  return supported(level) ? tables[level] : nullptr;
}

std::atomic<const Kernels*> current{nullptr};

}  // namespace

const char* const* available_kernels() {
  static const char* names[kLevels + 1];
  int count = 0;
  for (int level = 0; level < kLevels; ++level)
    if (const Kernels* table = table_of(level)) names[count++] = table->name;
  names[count] = nullptr;
  return names;
}

bool use_kernels(const char* name) {
  for (int level = 0; level < kLevels; ++level) {
    const Kernels* table = table_of(level);
    if (table && std::strcmp(table->name, name) == 0) {
      current.store(table);
      return true;
    }
  }
  return false;
}

const Kernels& kernels() {
  const Kernels* table = current.load(std::memory_order_relaxed);
  if (!table) {
    for (int level = 0; level < kLevels; ++level)
      if (table_of(level)) table = table_of(level);
    current.store(table);
  }
  return *table;
}

}  // namespace gossamer
