// Work is cut into parts that own their output; which thread runs a part changes nothing in the result.
#pragma once
#include <cstdint>

namespace gossamer {

// f(begin, end) over [0, n) in pieces of at least `grain`; one piece runs without waking other threads.
template <typename F>
static inline void parallel_for(int64_t n, int64_t grain, int threads, const F& f) {
  if (n <= 0) return;
  int64_t parts = (n + grain - 1) / grain;
  if (parts > int64_t(threads) * 8) parts = int64_t(threads) * 8;
  if (threads <= 1 || parts <= 1) {
    f(int64_t(0), n);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t part = 0; part < parts; ++part) f(n * part / parts, n * (part + 1) / parts);
}

// The first row whose edges and rows before it make up `share` of all work.
static inline int64_t row_at(const int64_t* rowptr, int64_t rows, int64_t work) {
  int64_t low = 0, high = rows;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (rowptr[middle] - rowptr[0] + middle < work) low = middle + 1;
    else high = middle;
  }
  return low;
}

// f(first_row, last_row) over the rows of a CSR matrix, in parts of equal work (edges + rows): hubs do not stall it.
template <typename F>
static inline void parallel_rows(const int64_t* rowptr, int64_t rows, int64_t cost_per_edge, int threads, const F& f) {
  if (rows <= 0) return;
  const int64_t work = rowptr[rows] - rowptr[0] + rows;
  int64_t parts = work * cost_per_edge / 16384 + 1;
  if (parts > int64_t(threads) * 32) parts = int64_t(threads) * 32;
  if (threads <= 1 || parts <= 1) {
    f(int64_t(0), rows);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t part = 0; part < parts; ++part) {
    // Products of work and part stay below 2^63 for any graph that fits a machine (2^40 edges, 2^20 parts).
    f(part == 0 ? 0 : row_at(rowptr, rows, work * part / parts),
      part + 1 == parts ? rows : row_at(rowptr, rows, work * (part + 1) / parts));
  }
}

}  // namespace gossamer
