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
constexpr int kBinBits = 16;                            // a bin holds the keys that agree in their highest bits
constexpr int64_t kLeastPart = int64_t(1) << kBinBits;  // rows of a thread: fewer than it has bins are not worth them
constexpr int64_t kWord = 64;

int64_t count_bits(uint64_t x) {  // not every processor has an instruction for it
  x -= (x >> 1) & 0x5555555555555555u;
  x = (x & 0x3333333333333333u) + ((x >> 2) & 0x3333333333333333u);
  x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu;
  return int64_t((x * 0x0101010101010101u) >> 56);
}

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
void top_rows(const float* key, const int64_t* cost, int64_t rows, int64_t budget, uint8_t* keep, int threads) {
  const int64_t parts = std::min<int64_t>(threads, 1 + rows / kLeastPart);
  const auto fits = [&](int64_t i) { return key[i] > 0 && bits_of(key[i]) < kInfinity && cost[i] <= budget; };
  const auto over_parts = [&](const auto& f) {
    parallel_for(parts, 1, threads, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p) f(size_t(p), rows * p / parts, rows * (p + 1) / parts);
    });
  };
  std::vector<std::vector<int64_t>> of_bin(static_cast<size_t>(parts));  // costs, by part and bin
  std::vector<int64_t> of_others(static_cast<size_t>(parts), 0);
  over_parts([&](size_t p, int64_t first, int64_t last) {
    of_bin[p].assign(size_t(1) << kBinBits, 0);
    for (int64_t i = first; i < last; ++i) {
      keep[i] = (bits_of(key[i]) & ~kSign) >= kInfinity;
      if (keep[i]) of_others[p] += cost[i];
      else if (fits(i)) of_bin[p][bits_of(key[i]) >> kBinBits] += cost[i];
    }
  });
  int64_t left = budget;
  for (int64_t others : of_others) left -= others;
  if (left < 0) return;
  int64_t bin = (int64_t(1) << kBinBits) - 1;
  for (; bin >= 0; --bin) {
    int64_t sum = 0;
    for (const auto& part : of_bin) sum += part[size_t(bin)];
    if (sum > left) break;
    left -= sum;
  }
  std::vector<std::vector<int64_t>> found(static_cast<size_t>(parts));  // of the one bin that is kept in part
  over_parts([&](size_t p, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      if (!fits(i)) continue;
      const int64_t own = bits_of(key[i]) >> kBinBits;
      if (own > bin) keep[i] = 1;
      else if (own == bin) found[p].push_back(i);
    }
  });
  std::vector<int64_t> candidates;
  for (const auto& part : found) candidates.insert(candidates.end(), part.begin(), part.end());
  take_best(key, cost, candidates, left, keep);
}

// Bit e of `kept` says whether edge e stays; before[w] of those edges precede word w. Both have a word more than the
// edges need. A row then finds its place by counting bits: no loop over its few edges, whose end no predictor knows.
int64_t count_kept(Csr a, const uint8_t* keep, uint64_t* kept, int64_t* before, int64_t* kept_rowptr, int threads) {
  const int64_t nnz = a.rowptr[a.num_dst], words = nnz / kWord + 1;
  parallel_for(words, 256, threads, [&](int64_t first, int64_t last) {
    for (int64_t w = first; w < last; ++w) {
      const int64_t begin = w * kWord, count = std::min(kWord, nnz - begin);
      uint64_t bits = 0;
      for (int64_t b = 0; b < count; ++b) bits |= uint64_t(keep[a.col[begin + b]] != 0) << b;
      kept[w] = bits;
      before[w + 1] = count_bits(bits);
    }
  });
  before[0] = 0;
  for (int64_t w = 0; w < words; ++w) before[w + 1] += before[w];
  parallel_for(a.num_dst + 1, 4096, threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t edge = a.rowptr[i], w = edge / kWord;
      kept_rowptr[i] = before[w] + count_bits(kept[w] & ((uint64_t(1) << (edge % kWord)) - 1));
    }
  });
  return before[words];
}

// The edges that count_kept found, in their order.
void filter_edges(Csr a, const float* value, const uint64_t* kept, const int64_t* before, int32_t* kept_col,
                  float* kept_value, int threads) {
  parallel_for(a.rowptr[a.num_dst] / kWord + 1, 256, threads, [&](int64_t first, int64_t last) {
    int64_t to = before[first];
    for (int64_t w = first; w < last; ++w) {
      for (uint64_t bits = kept[w]; bits; bits &= bits - 1, ++to) {
        const int64_t e = w * kWord + __builtin_ctzll(bits);
        kept_col[to] = a.col[e];
        if (value) kept_value[to] = value[e];
      }
    }
  });
}

}  // namespace gossamer
