// out = x W^T + bias of rows that are in memory (ops/row_products.py): a row's products have the same bits whatever
// rows are with it, since every sum runs over k in order (linear-inl.h).

static bool row_products(const float* x, Product by, int64_t rows, int64_t cols, int threads) {
  const Panels panels(&by, 1, rows, cols, rows < 256 ? 1 : threads);  // a few rows are no reason to wake threads
  if (!panels.data.data) return false;
  const int64_t step = panels.step();
  bool enough = true;
  parallel_for(ceil_div(rows, step), 1 + 65536 / (step * cols + 1), threads, [&](int64_t first, int64_t last) {
    Multiplier products(panels);
    if (!products.enough()) {
      __atomic_store_n(&enough, false, __ATOMIC_RELAXED);
      return;
    }
    const int64_t begin = first * step, end = min_of(rows, last * step);
    products.multiply(x + begin * cols, begin, end - begin);
    stream_fence();
  });
  return enough;
}
