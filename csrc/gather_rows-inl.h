// Rows of a table in the order of `ids`: copied, or decoded on the way.

constexpr int64_t kPrefetchRows = 8;

static void gather_rows(const char* x, const int64_t* ids, char* out, int64_t count, int64_t row_bytes, int threads) {
  if (row_bytes == 0) return;
  parallel_for(count, max_of<int64_t>(1, 65536 / max_of<int64_t>(row_bytes, 1)), threads,
               [&](int64_t first, int64_t last) {
                 for (int64_t k = first; k < last; ++k) {
                   if (k + kPrefetchRows < count) prefetch_bytes(x + ids[k + kPrefetchRows] * row_bytes, row_bytes);
                   std::memcpy(out + k * row_bytes, x + ids[k] * row_bytes, size_t(row_bytes));
                 }
               });
}

static void gather_rows_int8(const int8_t* codes, const float* scale, const int64_t* ids, float* out, int64_t count,
                             int64_t cols, int threads) {
  parallel_for(count, max_of<int64_t>(1, 16384 / max_of<int64_t>(cols, 1)), threads, [&](int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) {
      if (k + kPrefetchRows < count) prefetch_bytes(codes + ids[k + kPrefetchRows] * cols, cols);
      dequantize_row(codes + ids[k] * cols, scale[ids[k]], out + k * cols, cols, false);
    }
  });
}

// One block per row: the row's codes start on a byte.
template <int Bits>
static void gather_packed_rows(const uint8_t* codes, const void* zero, const void* range, const int64_t* ids,
                               float* out, int64_t count, int64_t cols, bool bf16_meta, int threads) {
  const int64_t bytes = ceil_div(cols * Bits, 8);
  Bins bins;
  fill_bins(&bins, nullptr, Bits);
  parallel_for(count, max_of<int64_t>(1, 16384 / max_of<int64_t>(cols, 1)), threads, [&](int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) {
      if (k + kPrefetchRows < count) prefetch_bytes(codes + ids[k + kPrefetchRows] * bytes, bytes);
      const BlockRange r = {read_meta(zero, ids[k], bf16_meta), read_meta(range, ids[k], bf16_meta)};
      unpack_span<Bits>(codes + ids[k] * bytes, 0, cols, r, bins, out + k * cols);
    }
  });
}

static void gather_packed(const uint8_t* codes, const void* zero, const void* range, const int64_t* ids, float* out,
                          int64_t count, int64_t cols, int bits, bool bf16_meta, int threads) {
  by_bits(bits, [&](auto tag) {
    gather_packed_rows<decltype(tag)::value>(codes, zero, range, ids, out, count, cols, bf16_meta, threads);
  });
}
