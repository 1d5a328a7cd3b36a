// A list of free mappings, most recently given back last. A request takes the smallest one that fits without wasting a
// quarter of it (half, if it says that it will not be held for long); beyond the limit the oldest are unmapped. Nor are
// free mappings kept beside a new one if together they would take more than was ever in use at once: the pool saves
// page faults, it does not raise the peak. Huge pages are asked for: fewer faults, fewer TLB misses.
#include "pool.h"

#include <sys/mman.h>

#include <mutex>
#include <unordered_map>
#include <vector>

namespace gossamer {
namespace {

constexpr int64_t kHugePage = int64_t(1) << 21;

struct Block {
  void* address;
  int64_t bytes;
};

struct Pool {
  std::mutex mutex;
  std::vector<Block> free;
  std::unordered_map<void*, int64_t> used;
  PoolStats stats = {0, 0, 0, 0, 0};
  int64_t most_used = 0;

  void trim(int64_t limit) {
    size_t oldest = 0;
    while (stats.free_bytes > limit) {
      munmap(free[oldest].address, size_t(free[oldest].bytes));
      stats.free_bytes -= free[oldest++].bytes;
    }
    free.erase(free.begin(), free.begin() + int64_t(oldest));
  }
};

// Never destroyed: tensors may outlive static destruction at interpreter exit.
Pool& pool() {
  static Pool* the_pool = new Pool;
  return *the_pool;
}

void* map_huge(int64_t bytes) {
  void* address = mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return nullptr;
#if defined(MADV_HUGEPAGE)
  madvise(address, size_t(bytes), MADV_HUGEPAGE);  // a wish: failure only costs speed
#endif
  return address;
}

}  // namespace

void* pool_take(int64_t bytes, bool roomy) {
  Pool& p = pool();
  bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  std::lock_guard<std::mutex> lock(p.mutex);
  size_t best = p.free.size();
  for (size_t k = 0; k < p.free.size(); ++k) {
    const int64_t size = p.free[k].bytes;
    if (size >= bytes && size <= bytes + (roomy ? bytes + kHugePage : bytes / 4) && (best == p.free.size() || size < p.free[best].bytes)) best = k;
  }
  Block block = {nullptr, bytes};
  if (best < p.free.size()) {
    block = p.free[best];
    p.free.erase(p.free.begin() + int64_t(best));
    p.stats.free_bytes -= block.bytes;
    ++p.stats.hits;
  } else {
    const int64_t beside = p.most_used - p.stats.used_bytes - bytes;
    p.trim(beside > 0 ? beside : 0);
    block.address = map_huge(bytes);
    if (!block.address) {
      p.trim(0);
      block.address = map_huge(bytes);
    }
    if (!block.address) return nullptr;
    ++p.stats.misses;
  }
  p.used[block.address] = block.bytes;
  p.stats.used_bytes += block.bytes;
  if (p.stats.used_bytes > p.most_used) p.most_used = p.stats.used_bytes;
  return block.address;
}

void pool_give(void* buffer) {
  Pool& p = pool();
  std::lock_guard<std::mutex> lock(p.mutex);
  const auto found = p.used.find(buffer);
  if (found == p.used.end()) return;
  p.free.push_back({buffer, found->second});
  p.stats.used_bytes -= found->second;
  p.stats.free_bytes += found->second;
  p.used.erase(found);
  p.trim(p.stats.limit_bytes);
}

void pool_limit(int64_t bytes) {
  Pool& p = pool();
  std::lock_guard<std::mutex> lock(p.mutex);
  p.stats.limit_bytes = bytes;
  p.most_used = p.stats.used_bytes;
  p.trim(bytes);
}

bool use_huge_pages(void* address, int64_t bytes) {
  const uintptr_t first = (reinterpret_cast<uintptr_t>(address) + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(address) + uintptr_t(bytes)) / kHugePage * kHugePage;
  if (first >= last) return false;
#if defined(MADV_HUGEPAGE)
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, Linux 6.1: gather the pages now instead of some day
  void* start = reinterpret_cast<void*>(first);
  return madvise(start, last - first, MADV_HUGEPAGE) == 0 && madvise(start, last - first, kCollapse) == 0;
#else
  return false;
#endif
}

PoolStats pool_stats() {
  Pool& p = pool();
  std::lock_guard<std::mutex> lock(p.mutex);
  return p.stats;
}

}  // namespace gossamer
