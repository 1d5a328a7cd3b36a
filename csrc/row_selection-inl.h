// Norms of the rows of a gradient, by which rows are selected (ops/row_selection.py).

static void row_norms(const float* x, float* out, int64_t rows, int64_t cols, int threads) {
  parallel_for(rows, max_of<int64_t>(1, 65536 / max_of<int64_t>(cols, 1)), threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const float* row = x + i * cols;
      f32x16 sum = splat(0.0f);
      for_vectors(cols, [&](int64_t c, int64_t count) GOSSAMER_INLINED {
        prefetch_rows(row + c, cols, kRowsAhead);
        const f32x16 part = load_part(row + c, count);
        sum += part * part;
      });
      out[i] = __builtin_sqrtf(sum_lanes(sum));
    }
  });
}

static void row_norms_int8(Int8Rows x, float* out, int64_t rows, int64_t cols, int threads) {
  parallel_for(rows, max_of<int64_t>(1, 65536 / max_of<int64_t>(cols, 1)), threads, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int8_t* row = x.codes + i * cols;
      out[i] = __builtin_sqrtf(float(dot(row, row, cols))) * x.scale[i];
    }
  });
}
