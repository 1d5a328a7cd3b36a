// Which rows of a gradient count, and the edges from them (ops/row_selection.py).
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels.h"
#include "parallel.h"

namespace gossamer {
namespace {

uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

constexpr uint32_t kSign = 0x80000000u, kInfinity = 0x7f800000u;
constexpr int kBinBits = 16;  // a bin holds the keys that agree in their highest bits

// The longest run of the best candidates whose costs fit into `left`: halves are taken or refused as a whole.
void take_best(const float* key, const int64_t* cost, std::vector<int64_t>& candidates, int64_t left, uint8_t* keep) {
  const auto better = [key](int64_t a, int64_t b) { return key[a] > key[b] || (key[a] == key[b] && a < b); };
  auto begin = candidates.begin(), end = candidates.end();
  while (begin != end) {
    const auto middle = begin + (end - begin + 1) / 2;
    if (middle != end) std::nth_element(begin, middle, end, better);
    int64_t sum = 0;
    for (auto k = begin; k != middle; ++k) sum += cost[*k];
    if (sum <= left) {
      for (auto k = begin; k != middle; ++k) keep[*k] = 1;
      left -= sum;
      begin = middle;
    } else if (end - begin == 1) {
      return;
    } else {
      end = middle;
    }
  }
}

}  // namespace

void nonzero_rows(const float* x, int64_t rows, int64_t cols, uint8_t* keep, int threads) {
  parallel_for(rows, std::max<int64_t>(1, 65536 / std::max<int64_t>(cols, 1)), threads,
               [&](int64_t first, int64_t last) {
                 for (int64_t i = first; i < last; ++i) {
                   const float* row = x + i * cols;
                   uint32_t any = 0;
                   for (int64_t c = 0; c < cols && !any;) {  // most rows end after their first sixteen elements
                     const int64_t stop = std::min(cols, c + 16);
                     for (; c < stop; ++c) any |= bits_of(row[c]) & ~kSign;
                   }
                   keep[i] = any != 0;
                 }
               });
}

// In the order of falling keys, equal ones by ascending row, rows are kept while their costs fit into `budget`. Keys
// that are not finite come first and are kept whatever they cost; zeros, and rows that alone cost more, never are.
void top_rows(const float* key, const int64_t* cost, int64_t rows, int64_t budget, uint8_t* keep) {
  std::memset(keep, 0, size_t(rows));
  std::vector<int64_t> of_bin(size_t(1) << kBinBits, 0);
  const auto fits = [&](int64_t i) { return key[i] > 0 && bits_of(key[i]) < kInfinity && cost[i] <= budget; };
  int64_t left = budget;
  for (int64_t i = 0; i < rows; ++i) {
    if ((bits_of(key[i]) & ~kSign) >= kInfinity) {
      keep[i] = 1;
      left -= cost[i];
    } else if (fits(i)) {
      of_bin[bits_of(key[i]) >> kBinBits] += cost[i];
    }
  }
  if (left < 0) return;
  int64_t bin = (int64_t(1) << kBinBits) - 1;
  for (; bin >= 0 && of_bin[size_t(bin)] <= left; --bin) left -= of_bin[size_t(bin)];
  std::vector<int64_t> candidates;  // of the one bin that is kept in part
  for (int64_t i = 0; i < rows; ++i) {
    if (!fits(i)) continue;
    const int64_t own = bits_of(key[i]) >> kBinBits;
    if (own > bin) keep[i] = 1;
    else if (own == bin) candidates.push_back(i);
  }
  take_best(key, cost, candidates, left, keep);
}

int64_t count_kept(Csr a, const uint8_t* keep, int64_t* kept_rowptr, int threads) {
  kept_rowptr[0] = 0;
  parallel_rows(a.rowptr, a.num_dst, 1, threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      int64_t count = 0;
      for (int64_t e = a.rowptr[i]; e < a.rowptr[i + 1]; ++e) count += keep[a.col[e]] != 0;
      kept_rowptr[i + 1] = count;
    }
  });
  for (int64_t i = 0; i < a.num_dst; ++i) kept_rowptr[i + 1] += kept_rowptr[i];
  return kept_rowptr[a.num_dst];
}

// The edges that count_kept counted, in their order.
void filter_edges(Csr a, const float* value, const uint8_t* keep, const int64_t* kept_rowptr, int32_t* kept_col,
                  float* kept_value, int threads) {
  parallel_rows(a.rowptr, a.num_dst, 1, threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      int64_t to = kept_rowptr[i];
      for (int64_t e = a.rowptr[i]; to < kept_rowptr[i + 1]; ++e) {  // written before it is known whether it counts
        kept_col[to] = a.col[e];
        if (value) kept_value[to] = value[e];
        to += keep[a.col[e]] != 0;
      }
    }
  });
}

}  // namespace gossamer
