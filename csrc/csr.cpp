// Building graphs: stable counting sorts. Each thread counts its own stretch of edges, the counts become start
// positions in (row, thread) order, and each thread then places its edges: no atomics, the same result for any number.
#include <cstring>
#include <memory>

#include "kernels.h"
#include "parallel.h"

namespace gossamer {
namespace {

// Threads worth waking for `count` elements.
int threads_for(int64_t count, int threads) { return count < 16384 || threads < 1 ? 1 : threads; }

// Counters are [threads, rows]; keep them below the size of the edge list itself.
int sort_threads(int64_t nnz, int64_t rows, int threads) {
  const int64_t limit = nnz / (rows + 1) + 1;
  threads = threads_for(nnz, threads);
  return limit < threads ? int(limit) : threads;
}

// place(e, position) for each edge, so that edges are ordered by row_of(e), equal rows in their old order.
template <typename RowOf, typename Place>
void counting_sort(int64_t nnz, int64_t rows, int64_t* rowptr, int threads, const RowOf& row_of, const Place& place) {
  threads = sort_threads(nnz, rows, threads);
  std::unique_ptr<int64_t[]> next(new int64_t[size_t(threads) * size_t(rows)]());
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; ++t) {
    int64_t* count = next.get() + t * rows;
    for (int64_t e = nnz * t / threads; e < nnz * (t + 1) / threads; ++e) ++count[row_of(e)];
  }
  int64_t position = 0;
  for (int64_t r = 0; r < rows; ++r) {
    rowptr[r] = position;
    for (int t = 0; t < threads; ++t) {
      const int64_t count = next[size_t(t * rows + r)];
      next[size_t(t * rows + r)] = position;
      position += count;
    }
  }
  rowptr[rows] = position;
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; ++t) {
    int64_t* start = next.get() + t * rows;
    for (int64_t e = nnz * t / threads; e < nnz * (t + 1) / threads; ++e) place(e, start[row_of(e)]++);
  }
}

template <typename Index>
int64_t first_outside(const Index* ids, int64_t count, int64_t limit, int threads) {
  int64_t first = count;
  threads = threads_for(count, threads);
#pragma omp parallel for schedule(static) num_threads(threads) reduction(min : first) if (threads > 1)
  for (int64_t k = 0; k < count; ++k)
    if (ids[k] < 0 || int64_t(ids[k]) >= limit) first = k < first ? k : first;
  return first == count ? -1 : first;
}

template <typename Index>
int64_t coo_to_csr_typed(const Index* dst, const Index* src, int64_t nnz, int64_t num_dst, int64_t num_src,
                         int64_t* rowptr, int32_t* col, int64_t* perm, int threads) {
  const int64_t bad_src = first_outside(src, nnz, num_src, threads);
  if (bad_src >= 0) return bad_src;
  const int64_t bad_dst = first_outside(dst, nnz, num_dst, threads);
  if (bad_dst >= 0) return nnz + bad_dst;
  counting_sort(
      nnz, num_dst, rowptr, threads, [&](int64_t e) { return int64_t(dst[e]); },
      [&](int64_t e, int64_t position) {
        col[position] = int32_t(src[e]);
        perm[position] = e;
      });
  return -1;
}

}  // namespace

// Returns -1, or the offending position: e for src[e], nnz + e for dst[e].
int64_t coo_to_csr(const void* dst, const void* src, int index_bytes, int64_t nnz, int64_t num_dst, int64_t num_src,
                   int64_t* rowptr, int32_t* col, int64_t* perm, int threads) {
  if (index_bytes == 8)
    return coo_to_csr_typed(static_cast<const int64_t*>(dst), static_cast<const int64_t*>(src), nnz, num_dst, num_src,
                            rowptr, col, perm, threads);
  return coo_to_csr_typed(static_cast<const int32_t*>(dst), static_cast<const int32_t*>(src), nnz, num_dst, num_src,
                          rowptr, col, perm, threads);
}

void transpose_csr(Csr a, int64_t num_src, int64_t* t_rowptr, int32_t* t_col, int64_t* t_perm, int threads) {
  const int64_t nnz = a.rowptr[a.num_dst];
  std::unique_ptr<int32_t[]> row(new int32_t[size_t(nnz) + 1]);
  parallel_rows(a.rowptr, a.num_dst, 1, threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      for (int64_t e = a.rowptr[i]; e < a.rowptr[i + 1]; ++e) row[size_t(e)] = int32_t(i);
  });
  counting_sort(
      nnz, num_src, t_rowptr, threads, [&](int64_t e) { return int64_t(a.col[e]); },
      [&](int64_t e, int64_t position) {
        t_col[position] = row[size_t(e)];
        t_perm[position] = e;
      });
}

void count_loops(Csr a, int64_t* loops, int threads) {
  parallel_rows(a.rowptr, a.num_dst, 1, threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      int64_t count = 0;
      for (int64_t e = a.rowptr[i]; e < a.rowptr[i + 1]; ++e) count += a.col[e] == i;
      loops[i] = count;
    }
  });
}

// The edges that are no loops go to kept_rowptr[i] on, in their order; diagonal_i adds up the others in theirs.
void split_loops(Csr a, const float* value, const int64_t* kept_rowptr, int32_t* kept_col, float* kept_value,
                 float* diagonal, int threads) {
  parallel_rows(a.rowptr, a.num_dst, 1, threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      int64_t to = kept_rowptr[i];
      float sum = 0;
      for (int64_t e = a.rowptr[i]; e < a.rowptr[i + 1]; ++e) {
        if (a.col[e] == i) {
          sum += value ? value[e] : 1.0f;
          continue;
        }
        if (value) kept_value[to] = value[e];
        kept_col[to++] = a.col[e];
      }
      diagonal[i] = sum;
    }
  });
}

// Ascending from 0 to nnz, or the first row where it is not.
int64_t check_rowptr(const int64_t* rowptr, int64_t num_dst, int64_t nnz) {
  if (rowptr[0] != 0) return 0;
  for (int64_t i = 0; i < num_dst; ++i)
    if (rowptr[i + 1] < rowptr[i]) return i + 1;
  return rowptr[num_dst] == nnz ? -1 : num_dst;
}

int64_t check_ids(const void* ids, int index_bytes, int64_t count, int64_t limit, int threads) {
  if (index_bytes == 8) return first_outside(static_cast<const int64_t*>(ids), count, limit, threads);
  return first_outside(static_cast<const int32_t*>(ids), count, limit, threads);
}

}  // namespace gossamer
