// A list of free buffers, most recently given back last. A request takes one of exactly its size; where there is none,
// the pages of others are moved under an address range of its own (mremap: 0.04 ms for 174 MB, where fresh pages cost
// 11 ms and more), and only what is then still missing is allocated. So the pool saves page faults, and never
// holds more than was once in use. All is in huge pages: the system moves those as such, and they cost fewer faults and
// TLB misses.
#include "pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace gossamer {
namespace {

constexpr int64_t kHugePage = int64_t(1) << 21;

int64_t round_up(int64_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

// A range of addresses, and the lengths of the mappings that lie in it side by side: the system moves only one mapping
// at a time.
struct Buffer {
  char* address;
  int64_t bytes;
  std::vector<int64_t> pieces;

  void append(int64_t piece) {
    pieces.push_back(piece);
    bytes += piece;
  }

  void unmap() const { munmap(address, size_t(bytes)); }
};

// Addresses without memory, from the start of a huge page on. Null when there are none.
char* reserve(int64_t bytes) {
  void* found = mmap(nullptr, size_t(bytes + kHugePage), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return nullptr;
  char* first = static_cast<char*>(found);
  const int64_t before = int64_t(-reinterpret_cast<uintptr_t>(first) % uint64_t(kHugePage));
  if (before) munmap(first, size_t(before));
  munmap(first + before + bytes, size_t(kHugePage - before));
  return first + before;
}

// Fresh memory at reserved addresses. Returns its bytes, zero when the system refused.
int64_t map_huge(char* to, int64_t bytes) {
  void* mapped = mmap(to, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (mapped == MAP_FAILED) return 0;
#if defined(MADV_HUGEPAGE)
  madvise(to, size_t(bytes), MADV_HUGEPAGE);  // a wish: failure only costs speed
#endif
  return bytes;
}

// Moves pages to reserved addresses.
bool move_pages(char* from, int64_t bytes, char* to) {
#if defined(MREMAP_FIXED)
  return mremap(from, size_t(bytes), size_t(bytes), MREMAP_MAYMOVE | MREMAP_FIXED, to) == to;
#else
  return false;
#endif
}

struct Pool {
  std::mutex mutex;
  std::vector<Buffer> free;
  std::unordered_map<void*, Buffer> used;
  PoolStats stats = {0, 0, 0, 0, 0};
  int64_t most_used = 0;

  // Where the last piece of the oldest free buffer ends, at most so many bytes of it: address and bytes.
  std::pair<char*, int64_t> last_of_oldest(int64_t most) {
    Buffer& source = free.front();
    const int64_t bytes = std::min(source.pieces.back(), most);
    return {source.address + source.bytes - bytes, bytes};
  }

  void drop_from_oldest(int64_t bytes) {
    Buffer& source = free.front();
    source.bytes -= bytes;
    source.pieces.back() -= bytes;
    stats.free_bytes -= bytes;
    if (!source.pieces.back()) source.pieces.pop_back();
    if (!source.bytes) free.erase(free.begin());
  }

  void trim(int64_t limit) {
    while (stats.free_bytes > limit) {
      const auto [address, bytes] = last_of_oldest(round_up(stats.free_bytes - limit));
      munmap(address, size_t(bytes));
      drop_from_oldest(bytes);
    }
  }

  // Moves pages of the oldest free buffer, at most so many bytes of them. Returns how many, zero when the system
  // refused.
  int64_t move_oldest(char* to, int64_t most) {
    const auto [address, bytes] = last_of_oldest(most);
    if (!move_pages(address, bytes, to)) return 0;
    drop_from_oldest(bytes);
    return bytes;
  }

  // A buffer of pages that are free, oldest first, and of fresh ones. Its address is null when the system refused:
  // addresses that were reserved for it then stay without memory, as they may be anybody's by now.
  Buffer assemble(int64_t bytes) {
    Buffer out = {reserve(bytes), 0, {}};
    if (!out.address) return out;
    const bool enough = stats.free_bytes >= bytes;
    while (out.bytes < bytes) {
      char* to = out.address + out.bytes;
      const int64_t missing = bytes - out.bytes;
      const int64_t got = free.empty() ? map_huge(to, missing) : move_oldest(to, missing);
      if (!got) {
        if (out.bytes) out.unmap();
        return {nullptr, 0, {}};
      }
      out.append(got);
    }
    ++(enough ? stats.hits : stats.misses);
    return out;
  }

  Buffer take(int64_t bytes) {
    const auto fits = [bytes](const Buffer& b) { return b.bytes == bytes; };
    const auto found = std::find_if(free.rbegin(), free.rend(), fits);
    if (found == free.rend()) return assemble(bytes);
    Buffer out = std::move(*found);
    free.erase(std::next(found).base());
    stats.free_bytes -= bytes;
    ++stats.hits;
    return out;
  }
};

// Never destroyed: tensors may outlive static destruction at interpreter exit.
Pool& pool() {
  static Pool* the_pool = new Pool;
  return *the_pool;
}

}  // namespace

void* pool_take(int64_t bytes) {
  Pool& p = pool();
  bytes = round_up(bytes);
  std::lock_guard<std::mutex> lock(p.mutex);
  Buffer buffer = p.take(bytes);
  if (!buffer.address) {
    p.trim(0);
    buffer = p.take(bytes);
  }
  if (!buffer.address) return nullptr;
  char* address = buffer.address;
  p.used[address] = std::move(buffer);
  p.stats.used_bytes += bytes;
  p.most_used = std::max(p.most_used, p.stats.used_bytes);
  return address;
}

void pool_give(void* address) {
  Pool& p = pool();
  std::lock_guard<std::mutex> lock(p.mutex);
  const auto found = p.used.find(address);
  if (found == p.used.end()) return;
  p.stats.used_bytes -= found->second.bytes;
  p.stats.free_bytes += found->second.bytes;
  p.free.push_back(std::move(found->second));
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

void pool_leave_room(int64_t bytes) {
  Pool& p = pool();
  std::lock_guard<std::mutex> lock(p.mutex);
  p.trim(std::max<int64_t>(p.most_used - p.stats.used_bytes - bytes, 0));
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
