// Bindings of epilogues that save few bits, and of weight gradients.
#include <nanobind/stl/vector.h>

#include <vector>

#include "bindings.h"

namespace gossamer {
namespace {

using Addresses = std::vector<Address>;

std::vector<Product> products_of(const Addresses& weight, const Addresses& bias, const Addresses& out,
                                 const std::vector<int64_t>& outs) {
  std::vector<Product> all;
  for (size_t k = 0; k < weight.size(); ++k)
    all.push_back({at<float>(weight[k]), at<float>(bias[k]), at<float>(out[k]), outs[k]});
  return all;
}

// The gradients of all weights that the same rows were multiplied by, as four lists.
std::vector<WeightGrad> wanted(const Addresses& g, const Addresses& partial, const Addresses& dw,
                               const std::vector<int64_t>& outs) {
  std::vector<WeightGrad> all;
  for (size_t k = 0; k < g.size(); ++k)
    all.push_back({at<float>(g[k]), at<float>(partial[k]), at<float>(dw[k]), outs[k]});
  return all;
}
}  // namespace

// A saved epilogue is passed as one object, made once per call from addresses (backends/cpu/_saved_epilogue.py).
void define_epilogue(nb::module_& m) {
  nb::class_<SavedEpilogue>(m, "SavedEpilogue")
      .def("__init__", [](SavedEpilogue* k, Address codes, Address zero, Address range, int64_t numel, int64_t block,
                          int bits, bool bf16_meta, Address levels, Address mask, Address slopes, int slope_bits,
                          float low, float width, float passing, float slope, double p, uint64_t seed) {
        new (k) SavedEpilogue{at<uint8_t>(codes),
                              at<void>(zero),
                              at<void>(range),
                              {numel, block, bits, bf16_meta, at<float>(levels)},
                              at<uint8_t>(mask),
                              at<uint8_t>(slopes),
                              slope_bits,
                              low,
                              width,
                              passing,
                              slope,
                              p,
                              seed};
      });
  def(m, "save_epilogue",
      [](Address x, Address scale, Address shift, Address col_mean, Address col_rstd, Address weight, Address bias,
         float eps, Address mean, Address var, int64_t first_row, int64_t rows, int64_t cols, int act, float slope,
         double p, uint64_t seed, const SavedEpilogue& k, bool stochastic, uint64_t noise, Address out,
         const Addresses& weights, const Addresses& biases, const Addresses& outs,
         const std::vector<int64_t>& out_features, int64_t group, int threads) {
        const ColumnAffine columns = {at<float>(scale), at<float>(shift), at<float>(col_mean), at<float>(col_rstd)};
        const EpilogueRows in = {at<float>(x),
                                 columns,
                                 {at<float>(weight), at<float>(bias), eps},
                                 at<float>(mean),
                                 at<float>(var),
                                 first_row,
                                 rows,
                                 cols};
        const std::vector<Product> all = products_of(weights, biases, outs, out_features);
        return kernels().save_epilogue(in, {act, slope, p, seed}, k, {stochastic, noise}, at<float>(out), all.data(),
                                       int(all.size()), group, threads);
      });
  def(m, "saved_epilogue_sums",
      [](Address dout, const SavedEpilogue& k, Address partial, Address sum_g, Address sum_gx, Address sum_hat,
         int64_t rows, int64_t cols, int threads) {
        return kernels().saved_epilogue_sums(at<float>(dout), k, at<float>(partial), at<float>(sum_g),
                                             at<float>(sum_gx), at<float>(sum_hat), rows, cols, threads);
      });
  def(m, "saved_epilogue_backward",
      [](Address dout, const SavedEpilogue& k, Address scale, Address by_hat, Address constant, Address dx,
         int64_t rows, int64_t cols, int threads) {
        return kernels().saved_epilogue_backward(at<float>(dout), k, at<float>(scale), at<float>(by_hat),
                                                 at<float>(constant), at<float>(dx), rows, cols, threads);
      });
  def(m, "saved_epilogue_row_backward",
      [](Address dout, const SavedEpilogue& k, Address weight, Address rstd, Address partial, Address dx,
         Address dweight, Address dbias, int64_t rows, int64_t cols, int threads) {
        return kernels().saved_epilogue_row_backward(at<float>(dout), k, at<float>(weight), at<float>(rstd),
                                                     at<float>(partial), at<float>(dx), at<float>(dweight),
                                                     at<float>(dbias), rows, cols, threads);
      });
  def(m, "decode_epilogue",
      [](const SavedEpilogue& k, Address weight, Address bias, bool result_saved, Address out, int64_t first_row,
         int64_t rows, int64_t cols, int threads) {
        return kernels().decode_epilogue(k, {at<float>(weight), at<float>(bias), 0.0f}, result_saved, at<float>(out),
                                         first_row, rows, cols, threads);
      });
}

void define_weight_grads(nb::module_& m) {
  def(m, "weight_grad",
      [](Address x, const Addresses& g, const Addresses& partial, const Addresses& dw, const std::vector<int64_t>& outs,
         int64_t rows, int64_t in, int threads) {
        const std::vector<WeightGrad> all = wanted(g, partial, dw, outs);
        return kernels().weight_grad(at<float>(x), all.data(), int(all.size()), rows, in, threads);
      });
  def(m, "saved_weight_grad",
      [](const SavedEpilogue& k, Address weight, Address bias, bool result_saved, const Addresses& g,
         const Addresses& partial, const Addresses& dw, const std::vector<int64_t>& outs, int64_t rows, int64_t in,
         int threads) {
        const std::vector<WeightGrad> all = wanted(g, partial, dw, outs);
        return kernels().saved_weight_grad(k, {at<float>(weight), at<float>(bias), 0.0f}, result_saved, all.data(),
                                           int(all.size()), rows, in, threads);
      });
  def(m, "epilogue_products_backward",
      [](Address x, Address scale, Address shift, int act, float slope, double p, uint64_t seed, const Addresses& g,
         const Addresses& weight, const Addresses& dw, const std::vector<int64_t>& outs, Address partial, Address dz,
         int64_t rows, int64_t cols, int threads) {
        std::vector<ProductGrad> all;
        for (size_t k = 0; k < g.size(); ++k)
          all.push_back({at<float>(g[k]), at<float>(weight[k]), at<float>(dw[k]), outs[k]});
        return kernels().epilogue_products_backward(
            at<float>(x), {at<float>(scale), at<float>(shift), nullptr, nullptr}, {act, slope, p, seed}, all.data(),
            int(all.size()), at<float>(partial), at<float>(dz), rows, cols, threads);
      });
}

}  // namespace gossamer
