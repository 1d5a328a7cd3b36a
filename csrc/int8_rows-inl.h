// Results as int8 rows: each row is computed in a thread's scratch and quantised there, no float row is written to
// memory.

// f(row, i) computes row i of a part in float32; then the row is quantised.
template <typename F>
GOSSAMER_INLINE bool write_rows(int64_t first, int64_t last, const RowWriter& writer, const F& fill) {
  Buffer<float> row(writer.cols);
  if (!row.data) return false;
  for (int64_t i = first; i < last; ++i) {
    fill(row.data, i);
    writer.write(row.data, row.data, i);
  }
  return true;
}

// Whether the sum of row i, whose edges are row i - shift of `a`, is zero because nothing is added up.
GOSSAMER_INLINE bool is_empty(const Csr& a, int64_t shift, const RowEnd& end, int64_t i) {
  return a.rowptr[i - shift] == a.rowptr[i - shift + 1] && !end.bias && !end.rows &&
         !(end.diagonal && end.diagonal[i * end.step] != 0);
}

// Neighbour sums of codes, as codes.
static bool spmm_rows(Csr a, EdgeWeight w, RowEnd end, const int8_t* x, RowCodes to, int64_t cols, int threads) {
  const int64_t width = cols / w.heads;
  const RowWriter writer(to, cols);
  bool enough = true;
  parallel_rows(a.rowptr, a.num_dst, cols, threads, [&](int64_t first, int64_t last) {
    bool written = true;
    const auto sum = [&](const Csr& m, int64_t shift, const EdgeWeight& of, int64_t begin, int64_t stop) {
      Buffer<float> row(cols);
      if (!row.data) {
        written = false;
        return;
      }
      for (int64_t i = begin; i < stop; ++i) {
        if (is_empty(m, shift, end, i)) {  // most rows, where few edges are kept
          writer.write_zeros(i);
          continue;
        }
        for (int64_t head = 0; head < of.heads; ++head)
          spmm_row(m, shift, of, end, i, head, x, row.data, cols, head * width, (head + 1) * width, false);
        writer.write(row.data, row.data, i);
      }
    };
    if (!over_kept(a, w, first, last, sum) || !written) __atomic_store_n(&enough, false, __ATOMIC_RELAXED);
  });
  return enough;
}

static bool quantize_times(const float* x, RowCodes to, int64_t rows, int64_t cols, int threads) {
  const RowWriter writer(to, cols);
  bool enough = true;
  parallel_for(rows, max_of<int64_t>(1, 16384 / max_of<int64_t>(cols, 1)), threads, [&](int64_t first, int64_t last) {
    if (!write_rows(first, last, writer, [&](float* row, int64_t i) {
          if (i + kRowsAhead < rows) prefetch_bytes(x + (i + kRowsAhead) * cols, cols * int64_t(sizeof(float)));
          std::memcpy(row, x + i * cols, size_t(cols) * sizeof(float));
        }))
      __atomic_store_n(&enough, false, __ATOMIC_RELAXED);
  });
  return enough;
}

// norm, activation and dropout (ops/norm_act.py), as codes.
template <int A, int S>
static bool epilogue_rows_as(const EpilogueRows& in, Pointwise pw, RowCodes to, int threads) {
  const Tail t = tail_of(pw);
  const int64_t cols = in.cols;
  const float inverse = 1.0f / float(cols);
  const RowWriter writer(to, cols);
  bool enough = true;
  parallel_for(in.rows, 1 + 16384 / (cols + 1), threads, [&](int64_t first, int64_t last) {
    if (!write_rows(first, last, writer, [&](float* row, int64_t r) {
          const float* x = in.x + r * cols;
          float mean = 0, rstd = 0;
          if (S == kByRow) {
            mean = row_mean(x, cols, inverse);
            const float var = row_var(x, cols, mean, inverse);
            in.mean[r] = mean, in.var[r] = var;
            rstd = 1.0f / __builtin_sqrtf(var + in.affine.eps);
          }
          for_vectors(cols, [&](int64_t c, int64_t count) GOSSAMER_INLINED {
            prefetch_rows(x + c, cols, kRowsAhead);
            const Passed passed = normalise<S>(in, load_part(x + c, count), mean, rstd, c, count);
            put_part(row + c, forward16<A>(passed.z, t, r * cols + c), count, false);
          });
        }))
      __atomic_store_n(&enough, false, __ATOMIC_RELAXED);
  });
  return enough;
}
static bool epilogue_rows(EpilogueRows in, Pointwise pw, RowCodes to, int threads) {
  bool enough = false;
  by_act(pw.act, [&](auto tag) {
    constexpr int A = decltype(tag)::value;
    if (in.columns.scale) enough = epilogue_rows_as<A, kByColumn>(in, pw, to, threads);
    else if (in.mean) enough = epilogue_rows_as<A, kByRow>(in, pw, to, threads);
    else enough = epilogue_rows_as<A, kNoNorm>(in, pw, to, threads);
  });
  return enough;
}

// The backward of norm, activation and dropout by columns (affine_backward), its rows as codes for each of two readers
// (codes null: none), the sums of its columns, and by head the products of the first reader's rows with x.
template <int A>
static bool affine_backward_rows_as(const float* dout, const float* x, ColumnAffine f, Correction k, Pointwise pw,
                                    const RowCodes* to, HeadProducts with_x, float* partial, float* sums, int64_t rows,
                                    int64_t cols, int threads) {
  const Tail t = tail_of(pw);
  const RowWriter writers[2] = {RowWriter(to[0], cols), RowWriter(to[1], cols)};
  const int64_t chunks = ceil_div(rows, kChunkRows), stride = padded(cols);
  bool enough = true;
  parallel_for(chunks, 1, threads, [&](int64_t first, int64_t last) {
    Buffer<float> both(2 * stride);
    if (!both.data) {
      __atomic_store_n(&enough, false, __ATOMIC_RELAXED);
      return;
    }
    float *row = both.data, *scratch = both.data + stride;
    for (int64_t chunk = first; chunk < last; ++chunk) {
      float* sum = partial + chunk * 2 * stride;
      std::memset(sum, 0, size_t(2 * stride) * sizeof(float));
      for (int64_t r = chunk * kChunkRows; r < min_of(rows, (chunk + 1) * kChunkRows); ++r) {
        for_vectors(cols, [&](int64_t c, int64_t count) GOSSAMER_INLINED {
          prefetch_rows(x + r * cols + c, cols, kRowsAhead);
          prefetch_rows(dout + r * cols + c, cols, kRowsAhead);
          const f32x16 g = affine_backward16<A>(dout, x, f, k, t, r * cols + c, c, count);
          store(row + c, g);
          store(sum + c, load<f32x16>(sum + c) + g);
        });
        for (const RowWriter& writer : writers)
          if (writer.to.codes) writer.write(row, scratch, r);
        if (with_x.out)
          code_dots(to[0].codes + r * cols, to[0].scale[r], x + r * cols, with_x.origin, with_x.heads,
                    cols / with_x.heads, with_x.out + r * with_x.heads);
      }
    }
  });
  if (enough) merge_sums(partial, rows, cols, sums, nullptr);
  return enough;
}
static bool affine_backward_rows(const float* dout, const float* x, ColumnAffine f, Correction k, Pointwise pw,
                                 const RowCodes* to, HeadProducts with_x, float* partial, float* sums, int64_t rows,
                                 int64_t cols, int threads) {
  bool enough = false;
  by_act(pw.act, [&](auto tag) {
    enough = affine_backward_rows_as<decltype(tag)::value>(dout, x, f, k, pw, to, with_x, partial, sums, rows, cols,
                                                           threads);
  });
  return enough;
}
