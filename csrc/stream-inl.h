// Non-temporal stores, and software prefetch.

// Past the caches: for outputs too large to be found there again. `to` is aligned to 64 bytes.
GOSSAMER_INLINE void stream(float* to, f32x16 v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, bits_of<__m512>(v.part[0]));
#elif defined(__AVX2__)
  _mm256_stream_ps(to, bits_of<__m256>(v.part[0]));
  _mm256_stream_ps(to + 8, bits_of<__m256>(v.part[kParts - 1]));
#else
  store(to, v);
#endif
}
// Whether a result of `numel` floats should go past the caches: larger than what a last-level cache would keep of it.
GOSSAMER_INLINE bool streams(const float* out, int64_t numel) {
  return numel >= (int64_t(1) << 23) && reinterpret_cast<uintptr_t>(out) % 64 == 0;
}
GOSSAMER_INLINE bool streams(const uint16_t*, int64_t) { return false; }
GOSSAMER_INLINE void put(float* to, f32x16 v, bool streaming) {
  if (streaming) stream(to, v);
  else store(to, v);
}
GOSSAMER_INLINE void put(uint16_t* to, f32x16 v, bool) { store_float(to, v); }
GOSSAMER_INLINE void stream_fence() {
#if defined(__AVX2__)
  _mm_sfence();
#endif
}
GOSSAMER_INLINE void prefetch_bytes(const void* from, int64_t bytes) {  // at most a page: more would evict itself
  const int64_t end = bytes < 4096 ? bytes : 4096;
  for (int64_t b = 0; b < end; b += 64) __builtin_prefetch(static_cast<const char*>(from) + b, 0, 3);
}
// Prefetches the same columns some rows ahead. The hardware prefetcher tracks a few long streams, not the many short
// ones of a block of rows: a column sum went from 15 to 23 GB/s. An address beyond the end does no harm.
GOSSAMER_INLINE void prefetch_rows(const float* here, int64_t cols, int64_t rows) {
  __builtin_prefetch(reinterpret_cast<const char*>(uintptr_t(here) + uintptr_t(rows * cols) * sizeof(float)), 0, 3);
}
