// Compressed features: ids in rows of whole bytes, sums by code, and ranks (ops/pack_ids.py, ops/code_sums.py,
// ops/rank_rows.py).
#include <algorithm>
#include <cstring>

#include "kernels.h"
#include "parallel.h"

namespace gossamer {
namespace {

// `bits` <= 16 bits from position `bit` of a row of `bytes` bytes, little-endian.
inline uint32_t bits_of_row(const uint8_t* row, int64_t bytes, int64_t bit, int bits) {
  const int64_t byte = bit / 8;
  uint32_t word = row[byte];
  if (byte + 1 < bytes) word |= uint32_t(row[byte + 1]) << 8;
  if (byte + 2 < bytes) word |= uint32_t(row[byte + 2]) << 16;
  return (word >> (bit % 8)) & ((1u << bits) - 1);
}
inline int64_t row_bytes(int64_t parts, int bits) { return (parts * bits + 7) / 8; }
inline int64_t grain_of(int64_t parts) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(parts, 1)); }

}  // namespace

void pack_ids(const int32_t* ids, int64_t rows, int64_t parts, int bits, uint8_t* packed, int threads) {
  const int64_t bytes = row_bytes(parts, bits);
  parallel_for(rows, grain_of(parts), threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      uint8_t* to = packed + i * bytes;
      uint64_t waiting = 0;
      int count = 0;
      for (int64_t p = 0; p < parts; ++p) {
        waiting |= uint64_t(uint32_t(ids[i * parts + p])) << count;
        for (count += bits; count >= 8; count -= 8, waiting >>= 8) *to++ = uint8_t(waiting);
      }
      if (count) *to = uint8_t(waiting);
    }
  });
}

void unpack_ids(const uint8_t* packed, int64_t rows, int64_t parts, int bits, int32_t* ids, int threads) {
  const int64_t bytes = row_bytes(parts, bits);
  parallel_for(rows, grain_of(parts), threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const uint8_t* from = packed + i * bytes;
      uint64_t waiting = 0;
      int count = 0;
      for (int64_t p = 0; p < parts; ++p) {
        for (; count < bits; count += 8) waiting |= uint64_t(*from++) << count;
        ids[i * parts + p] = int32_t(waiting & ((1u << bits) - 1));
        waiting >>= bits;
        count -= bits;
      }
    }
  });
}

// A thread owns some parts, and adds to their sums row by row: sums of several calls are those of one over all rows.
void code_sums(const float* x, const uint8_t* codes, int64_t rows, int64_t cols, int64_t width, int64_t length,
               int bits, double* sums, int64_t* counts, int threads) {
  const int64_t parts = (cols + width - 1) / width, bytes = row_bytes(parts, bits);
  parallel_for(parts, std::max<int64_t>(1, 32 / width), threads, [&](int64_t first, int64_t last) {
    for (int64_t i = 0; i < rows; ++i) {
      const float* row = x + i * cols;
      const uint8_t* from = codes + i * bytes;
      for (int64_t p = first; p < last; ++p) {
        const int64_t code = std::min<int64_t>(bits_of_row(from, bytes, p * bits, bits), length - 1);
        const int64_t at = p * length + code, start = p * width, end = std::min(cols, start + width);
        ++counts[at];
        for (int64_t c = start; c < end; ++c) sums[at * width + c - start] += double(row[c]);
      }
    }
  });
}

// Which of two matrices holds row v, and where: bit v of `level` says the first, and the bits before v, counted up to
// each 512th in `rank`, are the rows of the first that come before it.
void rank_rows(const uint8_t* level, const int32_t* rank, int64_t bytes, const int64_t* ids, int64_t count,
               int64_t* first_ids, int64_t* second_ids, int threads) {
  parallel_for(count, 4096, threads, [&](int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) {
      if (k + 16 < last) __builtin_prefetch(level + ids[k + 16] / 512 * 64);
      const int64_t v = ids[k], block = v / 512 * 64;
      int64_t before = rank[v / 512];
      for (int64_t byte = block; byte <= v / 8; byte += 8) {
        uint64_t word = 0;
        std::memcpy(&word, level + byte, size_t(std::min<int64_t>(8, bytes - byte)));
        const int64_t inside = v - byte * 8;
        if (inside < 64) word &= (uint64_t(1) << inside) - 1;
        before += __builtin_popcountll(word);
      }
      const bool is_first = level[v / 8] >> (v % 8) & 1;
      first_ids[k] = is_first ? before : -1;
      second_ids[k] = is_first ? -1 : v - before;
    }
  });
}

}  // namespace gossamer
