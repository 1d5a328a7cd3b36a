// Products of int8 rows.
#include "bindings.h"

namespace gossamer {
namespace {

Int8Rows rows_of(Address codes, Address scale) { return {at<int8_t>(codes), at<float>(scale)}; }
RowCodes codes_to(Address codes, Address scale, Address factor, bool stochastic, uint64_t seed, int64_t first = 0) {
  return {at<int8_t>(codes), at<float>(scale), at<float>(factor), {stochastic, seed}, first};
}

template <typename G>
using Grad = bool (*)(const G*, const float*, const int8_t*, uint64_t, float*, float*, int64_t, int64_t, int64_t, int);

template <typename G>
void def_grad(nb::module_& m, const char* name, Grad<G> Kernels::* kernel) {
  def(m, name,
      [kernel](Address g, Address row_scale, Address x, uint64_t seed, Address partial, Address dw, int64_t rows,
               int64_t outs, int64_t in, int threads) {
        return (kernels().*kernel)(at<G>(g), at<float>(row_scale), at<int8_t>(x), seed, at<float>(partial),
                                   at<float>(dw), rows, outs, in, threads);
      });
}

}  // namespace

void define_int8(nb::module_& m) {
  def(m, "int8_linear",
      [](Address x, Address x_scale, Address w, Address w_scale, Address bias, Address added, Address out,
         Address codes, Address scale, Address factor, bool stochastic, uint64_t seed, Address att, Address terms,
         int64_t count, int64_t heads, int64_t rows, int64_t in, int64_t outs, int threads) {
        const Int8Product one = {rows_of(x, x_scale), rows_of(w, w_scale), at<float>(bias), in};
        return kernels().int8_linear(&one, 1, at<float>(added), {}, at<float>(out),
                                     codes_to(codes, scale, factor, stochastic, seed),
                                     {at<float>(att), at<float>(terms), count, heads}, rows, outs, threads);
      });
  def(m, "int8_linear_two",
      [](Address x, Address x_scale, Address w, Address w_scale, Address bias, int64_t in, Address x2, Address x2_scale,
         Address w2, Address w2_scale, Address bias2, int64_t in2, Address out, int64_t rows, int64_t outs,
         int threads) {
        const Int8Product two[] = {{rows_of(x, x_scale), rows_of(w, w_scale), at<float>(bias), in},
                                   {rows_of(x2, x2_scale), rows_of(w2, w2_scale), at<float>(bias2), in2}};
        return kernels().int8_linear(two, 2, nullptr, {}, at<float>(out), {}, {}, rows, outs, threads);
      });
  def(m, "int8_linear_plus",
      [](Address x, Address x_scale, Address w, Address w_scale, Address left, Address right, int64_t rank, Address out,
         int64_t rows, int64_t in, int64_t outs, int threads) {
        const Int8Product one = {rows_of(x, x_scale), rows_of(w, w_scale), nullptr, in};
        return kernels().int8_linear(&one, 1, nullptr, {at<float>(left), at<float>(right), rank}, at<float>(out), {},
                                     {}, rows, outs, threads);
      });
  def(m, "spmm_rows",
      [](Address rowptr, Address col, int64_t n, Address value, Address src_scale, Address dst_scale, int64_t heads,
         Address keep, Address bias, Address diagonal, int64_t step, Address rows, Address own_scale, Address x,
         Address codes, Address scale, Address factor, bool stochastic, uint64_t seed, int64_t cols, int threads) {
        return kernels().spmm_rows(csr(rowptr, col, n), weight(value, src_scale, dst_scale, heads, keep),
                                   {at<float>(bias), at<float>(diagonal), step, at<float>(rows), at<float>(own_scale)},
                                   at<int8_t>(x), codes_to(codes, scale, factor, stochastic, seed), cols, threads);
      });
  def(m, "quantize_times",
      [](Address x, Address codes, Address scale, Address factor, bool stochastic, uint64_t seed, int64_t first_row,
         int64_t rows, int64_t cols, int threads) {
        return kernels().quantize_times(at<float>(x), codes_to(codes, scale, factor, stochastic, seed, first_row), rows,
                                        cols, threads);
      });
  def(m, "epilogue_rows",
      [](Address x, Address scale, Address shift, Address col_mean, Address col_rstd, Address weight, Address bias,
         float eps, Address mean, Address var, int64_t rows, int64_t cols, int act, float slope, double p,
         uint64_t seed, Address codes, Address row_scale, bool stochastic, uint64_t noise, int threads) {
        const ColumnAffine columns = {at<float>(scale), at<float>(shift), at<float>(col_mean), at<float>(col_rstd)};
        const EpilogueRows in = {
            at<float>(x), columns, {at<float>(weight), at<float>(bias), eps}, at<float>(mean), at<float>(var), 0,
            rows,         cols};
        return kernels().epilogue_rows(in, {act, slope, p, seed}, codes_to(codes, row_scale, 0, stochastic, noise),
                                       threads);
      });
  def(m, "affine_backward_rows",
      [](Address dout, Address x, Address scale, Address shift, Address mean, Address by_x, Address constant, int act,
         float slope, double p, uint64_t seed, Address codes, Address row_scale, Address factor, bool stochastic,
         uint64_t noise, Address codes2, Address row_scale2, Address factor2, bool stochastic2, uint64_t noise2,
         Address origin, Address dots, int64_t heads, Address partial, Address sums, int64_t rows, int64_t cols,
         int threads) {
        const RowCodes two[2] = {codes_to(codes, row_scale, factor, stochastic, noise),
                                 codes_to(codes2, row_scale2, factor2, stochastic2, noise2)};
        return kernels().affine_backward_rows(
            at<float>(dout), at<float>(x), {at<float>(scale), at<float>(shift), at<float>(mean), nullptr},
            {at<float>(by_x), at<float>(constant)}, {act, slope, p, seed}, two,
            {at<float>(origin), at<float>(dots), heads}, at<float>(partial), at<float>(sums), rows, cols, threads);
      });
  m.def("grad_slabs", &grad_slabs);
  m.attr("GRAD_CHUNK") = kGradChunk;
  def_grad(m, "int8_grad_f32", &Kernels::int8_grad_f32);
  def_grad(m, "int8_grad_int8", &Kernels::int8_grad_int8);
  def(m, "int8_grad_exact",
      [](Address g, Address x, Address scale, Address partial, Address dw, int64_t rows, int64_t outs, int64_t in,
         int threads) {
        kernels().int8_grad_exact(at<float>(g), rows_of(x, scale), at<float>(partial), at<float>(dw), rows, outs, in,
                                  threads);
      });
  def(m, "sddmm_int8",
      [](Address rowptr, Address col, int64_t n, Address a, Address a_scale, Address b, Address b_scale, Address out,
         int64_t cols, int64_t heads, int threads) {
        kernels().sddmm_int8(csr(rowptr, col, n), rows_of(a, a_scale), rows_of(b, b_scale), at<float>(out), cols, heads,
                             threads);
      });
  def(m, "gat_sum_int8",
      [](Address rowptr, Address col, int64_t n, Address a_src, Address a_dst, Address a_edge, float slope, double drop,
         uint64_t seed, Address h, Address h_scale, Address bias, Address out, Address log_sums, Address g,
         Address g_scale, Address dots, int64_t cols, int64_t heads, int threads) {
        return kernels().gat_sum_int8(csr(rowptr, col, n), {at<float>(a_src), at<float>(a_dst), at<float>(a_edge)},
                                      {slope, drop, seed}, rows_of(h, h_scale), at<float>(bias), at<float>(out),
                                      at<float>(log_sums), rows_of(g, g_scale), at<float>(dots), cols, heads, threads);
      });
  def(m, "gat_backward_int8",
      [](Address t_rowptr, Address t_col, int64_t n, Address t_perm, Address a_src, Address a_dst, Address a_edge,
         float slope, double drop, uint64_t seed, Address log_sums, Address dots, Address g, Address g_scale, Address h,
         Address h_scale, Address ds, Address da_src, Address records, int64_t num_dst, int64_t stride, Address out,
         Address codes, Address scale, Address factor, bool stochastic, uint64_t noise, int64_t cols, int64_t heads,
         int threads) {
        const GatBackward given = {at<int64_t>(t_perm),
                                   {at<float>(a_src), at<float>(a_dst), at<float>(a_edge)},
                                   at<float>(log_sums),
                                   at<float>(dots),
                                   at<float>(ds),
                                   at<float>(da_src),
                                   at<float>(records),
                                   num_dst,
                                   stride};
        return kernels().gat_backward_int8(csr(t_rowptr, t_col, n), given, {slope, drop, seed}, rows_of(g, g_scale),
                                           rows_of(h, h_scale), at<float>(out),
                                           codes_to(codes, scale, factor, stochastic, noise), cols, heads, threads);
      });
}

}  // namespace gossamer
