// Few-bit codes of a range that is known beforehand (ops/pack_fixed.py): no blocks, no metadata. Parts are cut at
// multiples of 64 elements, hence at whole bytes.

static void pack_fixed(const float* x, int64_t numel, int bits, float low, float range, Noise noise, uint8_t* codes,
                       int threads) {
  Rounding how;
  fill_rounding(&how, nullptr, bits, noise);
  parallel_for(ceil_div(numel, 64), 256, threads, [&](int64_t first, int64_t last) {
    const int64_t start = first * 64, n = min_of(last * 64, numel) - start;
    by_bits(bits, [&](auto tag) {
      constexpr int Bits = decltype(tag)::value;
      pack_block<Bits>(x + start, n, {low, range}, how, codes + start * Bits / 8, uint64_t(start));
    });
  });
}
static void unpack_fixed(const uint8_t* codes, int64_t numel, int bits, float low, float range, float* out,
                         int threads) {
  Bins bins;
  fill_bins(&bins, nullptr, bits);
  parallel_for(ceil_div(numel, 64), 256, threads, [&](int64_t first, int64_t last) {
    const int64_t start = first * 64, n = min_of(last * 64, numel) - start;
    by_bits(bits,
            [&](auto tag) { unpack_span<decltype(tag)::value>(codes, start, n, {low, range}, bins, out + start); });
  });
}
