// Quantisers with fixed scales, and the integer engine's products and sums.
#include "bindings.h"

namespace gossamer {
namespace {

constexpr int kFloatBits = 32;

Requantize requantize_to(Address row, Address shift, Address add, float slope, int32_t zero, int bits, Address out) {
  const bool floats = bits == kFloatBits;
  return {at<float>(row),
          at<float>(shift),
          at<float>(add),
          slope,
          zero,
          floats ? 0 : (1 << bits) - 1,
          bits,
          floats ? at<float>(out) : nullptr,
          floats ? nullptr : at<uint8_t>(out)};
}
IntegerProduct product_of(Address x, int bits, int64_t in, Address w, Address bias, Address mult) {
  return {at<uint8_t>(x), bits, in, at<int8_t>(w), at<int32_t>(bias), at<float>(mult)};
}

}  // namespace

void define_integer(nb::module_& m) {
  def(m, "fake_quantize",
      [](Address x, Address scale, Address inverse, bool per_column, float zero, float top, int rule, Address row,
         Address keep, Address out, Address bits, int64_t rows, int64_t cols, int threads) {
        const Quantizer by = {at<float>(scale), at<float>(inverse), per_column, zero, top, rule,
                              at<float>(row),   at<uint8_t>(keep)};
        kernels().fake_quantize(at<float>(x), by, at<float>(out), at<uint8_t>(bits), rows, cols, threads);
      });
  def(m, "fake_quantize_backward",
      [](Address dout, Address row, Address bits, Address dx, int64_t rows, int64_t cols, int threads) {
        kernels().fake_quantize_backward(at<float>(dout), at<float>(row), at<uint8_t>(bits), at<float>(dx), rows, cols,
                                         threads);
      });
  def(m, "histogram",
      [](Address x, Address row, Address keep, float low, float per_unit, int64_t bins, Address counts, int64_t rows,
         int64_t cols, int threads) {
        return kernels().histogram(at<float>(x), at<float>(row), at<uint8_t>(keep), low, per_unit, bins,
                                   at<int64_t>(counts), rows, cols, threads);
      });
  def(m, "quantize_affine",
      [](Address x, int64_t in, Address mult, Address row, Address shift, Address add, float slope, int32_t zero,
         int bits, Address out, Address bad, int64_t rows, int64_t cols, int threads) {
        kernels().quantize_affine(at<float>(x), in, at<float>(mult),
                                  requantize_to(row, shift, add, slope, zero, bits, out), at<int64_t>(bad), rows, cols,
                                  threads);
      });
  def(m, "requantize",
      [](Address x, int x_bits, int64_t stride, int32_t x_zero, Address mult, Address row, Address shift, Address add,
         float slope, int32_t zero, int bits, Address out, int64_t rows, int64_t cols, int threads) {
        kernels().requantize(at<uint8_t>(x), x_bits, stride, x_zero, at<float>(mult),
                             requantize_to(row, shift, add, slope, zero, bits, out), rows, cols, threads);
      });
  def(m, "integer_linear",
      [](Address x, int x_bits, int64_t in, Address w, Address bias, Address mult, Address x2, int x2_bits, int64_t in2,
         Address w2, Address bias2, Address mult2, int count, Address row, Address shift, Address add, float slope,
         int32_t zero, int bits, Address out, int64_t rows, int64_t outs, int threads) {
        const IntegerProduct two[] = {product_of(x, x_bits, in, w, bias, mult),
                                      product_of(x2, x2_bits, in2, w2, bias2, mult2)};
        return kernels().integer_linear(two, count, requantize_to(row, shift, add, slope, zero, bits, out), rows, outs,
                                        threads);
      });
  def(m, "integer_sum",
      [](Address rowptr, Address col, int64_t n, Address x, int x_bits, int64_t stride, int32_t neighbours, int32_t own,
         int32_t x_zero, Address mult, Address row, Address shift, Address add, float slope, int32_t zero, int bits,
         Address out, int64_t cols, int threads) {
        const IntegerSum of = {at<uint8_t>(x), x_bits, stride, neighbours, own, x_zero, at<float>(mult)};
        return kernels().integer_sum(csr(rowptr, col, n), of, requantize_to(row, shift, add, slope, zero, bits, out),
                                     cols, threads);
      });
  def(m, "integer_weighted_sum",
      [](Address rowptr, Address col, int64_t n, Address weight, Address own, Address x, int x_bits, int64_t stride,
         int64_t stored, int32_t x_zero, Address mult, Address row, Address shift, Address add, float slope,
         int32_t zero, int bits, Address out, int64_t cols, int threads) {
        IntegerAttention of = {};
        of.x = at<uint8_t>(x), of.bits = x_bits, of.stride = stride, of.stored = of.padded = stored, of.zero = x_zero;
        of.heads = 1, of.width = cols, of.mult = at<float>(mult);
        of.weighted = true, of.weights = at<uint8_t>(weight), of.own = at<uint8_t>(own);
        return kernels().integer_attention(csr(rowptr, col, n), of,
                                           requantize_to(row, shift, add, slope, zero, bits, out), cols, threads);
      });
  def(m, "integer_max",
      [](Address rowptr, Address col, int64_t n, Address x, int x_bits, int64_t stride, int32_t zero, Address out,
         int threads) {
        kernels().integer_max(csr(rowptr, col, n), at<uint8_t>(x), x_bits, stride, zero, at<uint8_t>(out), threads);
      });
  def(m, "integer_attention",
      [](Address rowptr, Address col, int64_t n, Address a_src, Address a_dst, Address edge, float slope, Address table,
         int64_t table_size, float per_step, Address x, int x_bits, int64_t stride, int64_t stored, int32_t x_zero,
         int64_t heads, int64_t width, bool mean, Address mult, Address row, Address shift, Address add,
         float result_slope, int32_t zero, int bits, Address out, int64_t cols, int threads) {
        const IntegerAttention of = {at<uint8_t>(x),   x_bits,
                                     stride,           stored,
                                     x_zero,           heads,
                                     stored / heads,   width,
                                     at<float>(a_src), at<float>(a_dst),
                                     at<float>(edge),  slope,
                                     at<float>(table), table_size,
                                     per_step,         mean,
                                     at<float>(mult),  false,
                                     nullptr,          nullptr};
        return kernels().integer_attention(
            csr(rowptr, col, n), of, requantize_to(row, shift, add, result_slope, zero, bits, out), cols, threads);
      });
}

}  // namespace gossamer
