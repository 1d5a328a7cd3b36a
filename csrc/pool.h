// Large buffers that are given back instead of returned to the system: their pages are faulted in once.
#pragma once
#include <cstdint>

namespace gossamer {

struct PoolStats {
  int64_t limit_bytes, free_bytes, used_bytes, hits, misses;
};

// Null when the system has no more memory. `lasting`: it will be held for long, so a much larger buffer will not do.
void* pool_take(int64_t bytes, bool lasting);
void pool_give(void* buffer);
void pool_limit(int64_t bytes);  // how many free bytes are kept; 0 keeps none and frees what is there
PoolStats pool_stats();

// Ask for huge pages under memory that somebody else owns. False when the system has none to give.
bool use_huge_pages(void* address, int64_t bytes);

}  // namespace gossamer
