// Codes of compressed features.
#include "bindings.h"

namespace gossamer {
namespace {

template <typename Out>
using Scalar = void (*)(ScalarRows, const int64_t*, Out*, int64_t, int);
template <typename Out>
using Product = void (*)(ProductRows, const int64_t*, Out*, int64_t, int);

template <typename Out>
void def_gathers(nb::module_& m, const char* scalar_name, Scalar<Out> Kernels::* scalar, const char* product_name,
                 Product<Out> Kernels::* product) {
  def(m, scalar_name,
      [scalar](Address codes, int64_t cols, int bits, Address table, bool per_column, Address ids, Address out,
               int64_t count, int threads) {
        (kernels().*scalar)({at<uint8_t>(codes), cols, bits, at<float>(table), per_column}, at<int64_t>(ids),
                            at<Out>(out), count, threads);
      });
  def(m, product_name,
      [product](Address codes, int64_t rows, int64_t cols, int64_t width, int64_t length, int bits, Address books,
                Address scale, Address ids, Address out, int64_t count, int threads) {
        (kernels().*product)(
            {at<uint8_t>(codes), rows, cols, width, length, bits, at<uint16_t>(books), at<float>(scale)},
            at<int64_t>(ids), at<Out>(out), count, threads);
      });
}

}  // namespace

void define_features(nb::module_& m) {
  def_gathers(m, "gather_scalar_f32", &Kernels::gather_scalar_f32, "gather_product_f32", &Kernels::gather_product_f32);
  def_gathers(m, "gather_scalar_bf16", &Kernels::gather_scalar_bf16, "gather_product_bf16",
              &Kernels::gather_product_bf16);
  def(m, "spmm_scalar",
      [](Address rowptr, Address col, int64_t n, Address value, Address src_scale, Address dst_scale, Address diagonal,
         int64_t step, Address codes, int64_t cols, int bits, Address table, bool per_column, Address out,
         int threads) {
        kernels().spmm_scalar(csr(rowptr, col, n), weight(value, src_scale, dst_scale, 1),
                              {nullptr, at<float>(diagonal), step, nullptr, nullptr},
                              {at<uint8_t>(codes), cols, bits, at<float>(table), per_column}, at<float>(out), threads);
      });
  def(m, "encode_scalar",
      [](Address x, int64_t cols, int bits, Address thresholds, bool per_column, Address codes, int64_t rows,
         int64_t chunk_rows, Address bad, int threads) {
        kernels().encode_scalar(at<float>(x), {nullptr, cols, bits, at<float>(thresholds), per_column},
                                at<uint8_t>(codes), rows, chunk_rows, at<int64_t>(bad), threads);
      });
  def(m, "encode_product",
      [](Address x, Address books, Address start, Address inverse_scale, int64_t cols, int64_t width, int64_t length,
         int bits, Address codes, int64_t rows, int64_t chunk_rows, Address bad, int threads) {
        return kernels().encode_product(
            at<float>(x), {at<float>(books), at<float>(start), at<float>(inverse_scale), cols, width, length, bits},
            at<uint8_t>(codes), rows, chunk_rows, at<int64_t>(bad), threads);
      });
  def(m, "row_products",
      [](Address x, Address weight, Address bias, Address out, int64_t rows, int64_t cols, int64_t outs, int threads) {
        return kernels().row_products(at<float>(x), {at<float>(weight), at<float>(bias), at<float>(out), outs}, rows,
                                      cols, threads);
      });
  def(m, "pack_ids", [](Address ids, int64_t rows, int64_t parts, int bits, Address packed, int threads) {
    pack_ids(at<int32_t>(ids), rows, parts, bits, at<uint8_t>(packed), threads);
  });
  def(m, "unpack_ids", [](Address packed, int64_t rows, int64_t parts, int bits, Address ids, int threads) {
    unpack_ids(at<uint8_t>(packed), rows, parts, bits, at<int32_t>(ids), threads);
  });
  def(m, "code_sums",
      [](Address x, Address codes, int64_t rows, int64_t cols, int64_t width, int64_t length, int bits, Address sums,
         Address counts, int threads) {
        code_sums(at<float>(x), at<uint8_t>(codes), rows, cols, width, length, bits, at<double>(sums),
                  at<int64_t>(counts), threads);
      });
  def(m, "rank_rows",
      [](Address level, Address rank, int64_t bytes, Address ids, int64_t count, Address first_ids, Address second_ids,
         int threads) {
        rank_rows(at<uint8_t>(level), at<int32_t>(rank), bytes, at<int64_t>(ids), count, at<int64_t>(first_ids),
                  at<int64_t>(second_ids), threads);
      });
}

}  // namespace gossamer
