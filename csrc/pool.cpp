// A list of free mappings, most recently given back last. A request takes the smallest one that fits without wasting a
// quarter of it; beyond the limit the oldest are unmapped. The pool saves page faults, but it does not raise the peak:
// if a new mapping beside the free ones would take more than was ever asked for at once, a request that will not last
// is lent a larger mapping, and otherwise free ones are unmapped. Huge pages are asked for: fewer faults and TLB
// misses.
#include "pool.h"

#include <sys/mman.h>

#include <mutex>
#include <unordered_map>
#include <vector>

namespace gossamer {
namespace {

constexpr int64_t kHugePage = int64_t(1) << 21;
constexpr int64_t kMostLent = 8;  // a mapping is lent to what fills at least an eighth of it

struct Block {
  void* address;
  int64_t bytes, asked;
};

struct Pool {
  std::mutex mutex;
  std::vector<Block> free;
  std::unordered_map<void*, Block> used;
  PoolStats stats = {0, 0, 0, 0, 0};
  int64_t asked = 0, most_asked = 0;

  // The smallest free mapping of at least and at most so many bytes; free.size() if there is none.
  size_t smallest(int64_t least, int64_t most) const {
    size_t best = free.size();
    for (size_t k = 0; k < free.size(); ++k)
      if (free[k].bytes >= least && free[k].bytes <= most && (best == free.size() || free[k].bytes < free[best].bytes))
        best = k;
    return best;
  }

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

void* pool_take(int64_t bytes, bool lasting) {
  Pool& p = pool();
  bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  std::lock_guard<std::mutex> lock(p.mutex);
  const int64_t beside = p.most_asked - p.stats.used_bytes - bytes;  // free bytes that may stay beside a new mapping
  size_t best = p.smallest(bytes, bytes + bytes / 4);
  if (best == p.free.size() && !lasting && p.stats.free_bytes > beside) best = p.smallest(bytes, bytes * kMostLent);
  Block block = {nullptr, bytes, bytes};
  if (best < p.free.size()) {
    block = {p.free[best].address, p.free[best].bytes, bytes};
    p.free.erase(p.free.begin() + int64_t(best));
    p.stats.free_bytes -= block.bytes;
    ++p.stats.hits;
  } else {
    p.trim(beside > 0 ? beside : 0);
    block.address = map_huge(bytes);
    if (!block.address) {
      p.trim(0);
      block.address = map_huge(bytes);
    }
    if (!block.address) return nullptr;
    ++p.stats.misses;
  }
  p.used[block.address] = block;
  p.stats.used_bytes += block.bytes;
  p.asked += bytes;
  if (p.asked > p.most_asked) p.most_asked = p.asked;
  return block.address;
}

void pool_give(void* buffer) {
  Pool& p = pool();
  std::lock_guard<std::mutex> lock(p.mutex);
  const auto found = p.used.find(buffer);
  if (found == p.used.end()) return;
  p.free.push_back(found->second);
  p.stats.used_bytes -= found->second.bytes;
  p.stats.free_bytes += found->second.bytes;
  p.asked -= found->second.asked;
  p.used.erase(found);
  p.trim(p.stats.limit_bytes);
}

void pool_limit(int64_t bytes) {
  Pool& p = pool();
  std::lock_guard<std::mutex> lock(p.mutex);
  p.stats.limit_bytes = bytes;
  p.most_asked = p.asked;
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
