// Large buffers that are given back instead of returned to the system: their pages are faulted in once.
#pragma once
#include <cstdint>

namespace gossamer {

struct PoolStats {
  int64_t limit_bytes, free_bytes, used_bytes, hits, misses;
};

void* pool_take(int64_t bytes);  // null when the system has no more memory
void pool_give(void* buffer);
void pool_limit(int64_t bytes);       // how many free bytes are kept; 0 keeps none and frees what is there
void pool_leave_room(int64_t bytes);  // give back free bytes until others may take so many below the pool's peak
PoolStats pool_stats();

// Ask for huge pages under memory that somebody else owns. False when the system has none to give.
bool use_huge_pages(void* address, int64_t bytes);

}  // namespace gossamer
