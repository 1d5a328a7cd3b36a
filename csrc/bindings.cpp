// The native module: addresses and sizes in, nothing out but what a kernel returns. Python owns every tensor.
#include "bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "pool.h"

using namespace gossamer;

namespace {

std::vector<std::string> available() {
  std::vector<std::string> names;
  for (const char* const* name = available_kernels(); *name; ++name) names.push_back(*name);
  return names;
}

template <typename In, typename Out>
using Spmm = bool (*)(Csr, EdgeWeight, RowEnd, const In*, Out*, int64_t, int);

template <typename In, typename Out>
void def_spmm(nb::module_& m, const char* name, Spmm<In, Out> Kernels::* kernel) {
  def(m, name,
      [kernel](Address rowptr, Address col, int64_t n, Address value, Address src_scale, Address dst_scale,
               int64_t heads, Address keep, Address bias, Address diagonal, int64_t step, Address rows,
               Address own_scale, Address x, Address out, int64_t cols, int threads) {
        return (kernels().*kernel)(csr(rowptr, col, n), weight(value, src_scale, dst_scale, heads, keep),
                                   {at<float>(bias), at<float>(diagonal), step, at<float>(rows), at<float>(own_scale)},
                                   at<In>(x), at<Out>(out), cols, threads);
      });
}

void define_sparse(nb::module_& m) {
  def_spmm(m, "spmm_f32", &Kernels::spmm_f32);
  def_spmm(m, "spmm_bf16", &Kernels::spmm_bf16);
  def_spmm(m, "spmm_int8", &Kernels::spmm_int8);
  def(m, "spmm_max",
      [](Address rowptr, Address col, int64_t n, Address value, Address x, Address out, Address winner,
         int winner_bytes, int64_t cols, int threads) {
        kernels().spmm_max(csr(rowptr, col, n), weight(value, 0, 0, 1), at<float>(x), at<float>(out), at<void>(winner),
                           winner_bytes, cols, threads);
      });
  def(m, "spmm_max_backward",
      [](Address rowptr, Address col, int64_t n, Address value, Address dout, Address winner, int winner_bytes,
         Address dx, int64_t cols, int threads) {
        return kernels().spmm_max_backward(csr(rowptr, col, n), weight(value, 0, 0, 1), at<float>(dout),
                                           at<void>(winner), winner_bytes, at<float>(dx), cols, threads);
      });
  def(m, "sddmm",
      [](Address rowptr, Address col, int64_t n, Address a, Address b, Address out, int64_t cols, int64_t heads,
         int threads) {
        kernels().sddmm(csr(rowptr, col, n), at<float>(a), at<float>(b), at<float>(out), cols, heads, threads);
      });
  def(m, "edge_softmax", [](Address rowptr, int64_t n, Address logits, Address out, int64_t heads, int threads) {
    kernels().edge_softmax(csr(rowptr, 0, n), at<float>(logits), at<float>(out), heads, threads);
  });
  def(m, "edge_softmax_backward",
      [](Address rowptr, int64_t n, Address out, Address dout, Address dlogits, int64_t heads, int threads) {
        kernels().edge_softmax_backward(csr(rowptr, 0, n), at<float>(out), at<float>(dout), at<float>(dlogits), heads,
                                        threads);
      });
}

void define_graph(nb::module_& m) {
  def(m, "coo_to_csr",
      [](Address dst, Address src, int index_bytes, int64_t nnz, int64_t num_dst, int64_t num_src, Address rowptr,
         Address col, Address perm, int threads) {
        return coo_to_csr(at<void>(dst), at<void>(src), index_bytes, nnz, num_dst, num_src, at<int64_t>(rowptr),
                          at<int32_t>(col), at<int64_t>(perm), threads);
      });
  def(m, "transpose_csr",
      [](Address rowptr, Address col, int64_t num_dst, int64_t num_src, Address t_rowptr, Address t_col, Address t_perm,
         int threads) {
        transpose_csr(csr(rowptr, col, num_dst), num_src, at<int64_t>(t_rowptr), at<int32_t>(t_col),
                      at<int64_t>(t_perm), threads);
      });
  def(m, "count_loops", [](Address rowptr, Address col, int64_t n, Address loops, int threads) {
    count_loops(csr(rowptr, col, n), at<int64_t>(loops), threads);
  });
  def(m, "split_loops",
      [](Address rowptr, Address col, int64_t n, Address value, Address kept_rowptr, Address kept_col,
         Address kept_value, Address diagonal, int threads) {
        split_loops(csr(rowptr, col, n), at<float>(value), at<int64_t>(kept_rowptr), at<int32_t>(kept_col),
                    at<float>(kept_value), at<float>(diagonal), threads);
      });
  def(m, "nonzero_rows", [](Address x, int64_t rows, int64_t cols, Address keep, int threads) {
    nonzero_rows(at<float>(x), rows, cols, at<uint8_t>(keep), threads);
  });
  def(m, "row_norms", [](Address x, Address out, int64_t rows, int64_t cols, int threads) {
    kernels().row_norms(at<float>(x), at<float>(out), rows, cols, threads);
  });
  def(m, "row_norms_int8", [](Address codes, Address scale, Address out, int64_t rows, int64_t cols, int threads) {
    kernels().row_norms_int8({at<int8_t>(codes), at<float>(scale)}, at<float>(out), rows, cols, threads);
  });
  def(m, "top_rows", [](Address key, Address cost, int64_t rows, int64_t budget, Address keep, int threads) {
    top_rows(at<float>(key), at<int64_t>(cost), rows, budget, at<uint8_t>(keep), threads);
  });
  def(m, "count_kept",
      [](Address rowptr, Address col, int64_t n, Address keep, Address kept, Address before, Address kept_rowptr,
         int threads) {
        return count_kept(csr(rowptr, col, n), at<uint8_t>(keep), at<uint64_t>(kept), at<int64_t>(before),
                          at<int64_t>(kept_rowptr), threads);
      });
  def(m, "filter_edges",
      [](Address rowptr, Address col, int64_t n, Address value, Address kept, Address before, Address kept_col,
         Address kept_value, int threads) {
        filter_edges(csr(rowptr, col, n), at<float>(value), at<uint64_t>(kept), at<int64_t>(before),
                     at<int32_t>(kept_col), at<float>(kept_value), threads);
      });
  def(m, "check_rowptr",
      [](Address rowptr, int64_t num_dst, int64_t nnz) { return check_rowptr(at<int64_t>(rowptr), num_dst, nnz); });
  def(m, "check_ids", [](Address ids, int index_bytes, int64_t count, int64_t limit, int threads) {
    return check_ids(at<void>(ids), index_bytes, count, limit, threads);
  });
}

void define_codes(nb::module_& m) {
  def(m, "quantize_rows",
      [](Address x, Address codes, Address scale, int64_t rows, int64_t cols, bool stochastic, uint64_t seed,
         int threads) {
        kernels().quantize_rows(at<float>(x), at<int8_t>(codes), at<float>(scale), rows, cols, {stochastic, seed},
                                threads);
      });
  def(m, "dequantize_rows", [](Address codes, Address scale, Address out, int64_t rows, int64_t cols, int threads) {
    kernels().dequantize_rows(at<int8_t>(codes), at<float>(scale), at<float>(out), rows, cols, threads);
  });
  def(m, "pack",
      [](Address x, int64_t numel, int64_t block, int bits, bool bf16_meta, Address codes, Address zero, Address range,
         Address levels, bool stochastic, uint64_t seed, int threads) {
        kernels().pack(at<float>(x), {numel, block, bits, bf16_meta, at<float>(levels)}, at<uint8_t>(codes),
                       at<void>(zero), at<void>(range), {stochastic, seed}, threads);
      });
  def(m, "unpack",
      [](Address codes, Address zero, Address range, int64_t numel, int64_t block, int bits, bool bf16_meta,
         Address levels, Address out, int threads) {
        kernels().unpack(at<uint8_t>(codes), at<void>(zero), at<void>(range),
                         {numel, block, bits, bf16_meta, at<float>(levels)}, at<float>(out), threads);
      });
  def(m, "pack_fixed",
      [](Address x, int64_t numel, int bits, float low, float range, bool stochastic, uint64_t seed, Address codes,
         int threads) {
        kernels().pack_fixed(at<float>(x), numel, bits, low, range, {stochastic, seed}, at<uint8_t>(codes), threads);
      });
  def(m, "unpack_fixed", [](Address codes, int64_t numel, int bits, float low, float range, Address out, int threads) {
    kernels().unpack_fixed(at<uint8_t>(codes), numel, bits, low, range, at<float>(out), threads);
  });
  def(m, "gather_rows", [](Address x, Address ids, Address out, int64_t count, int64_t row_bytes, int threads) {
    kernels().gather_rows(at<char>(x), at<int64_t>(ids), at<char>(out), count, row_bytes, threads);
  });
  def(m, "gather_rows_int8",
      [](Address codes, Address scale, Address ids, Address out, int64_t count, int64_t cols, int threads) {
        kernels().gather_rows_int8(at<int8_t>(codes), at<float>(scale), at<int64_t>(ids), at<float>(out), count, cols,
                                   threads);
      });
  def(m, "gather_packed",
      [](Address codes, Address zero, Address range, Address ids, Address out, int64_t count, int64_t cols, int bits,
         bool bf16_meta, int threads) {
        kernels().gather_packed(at<uint8_t>(codes), at<void>(zero), at<void>(range), at<int64_t>(ids), at<float>(out),
                                count, cols, bits, bf16_meta, threads);
      });
}

void define_dropout(nb::module_& m) {
  def(m, "random_bits", [](uint64_t seed, int64_t offset, Address out, int64_t numel, int threads) {
    kernels().random_bits(seed, offset, at<uint32_t>(out), numel, threads);
  });
  def(m, "dropout", [](Address x, Address out, Address mask, int64_t numel, double p, uint64_t seed, int threads) {
    kernels().dropout(at<float>(x), at<float>(out), at<uint8_t>(mask), numel, p, seed, threads);
  });
  def(m, "relu_dropout", [](Address x, Address out, Address mask, int64_t numel, double p, uint64_t seed, int threads) {
    kernels().relu_dropout(at<float>(x), at<float>(out), at<uint8_t>(mask), numel, p, seed, threads);
  });
  def(m, "masked_scale", [](Address x, Address mask, Address out, int64_t numel, double p, int threads) {
    kernels().masked_scale(at<float>(x), at<uint8_t>(mask), at<float>(out), numel, p, threads);
  });
}

void define_attention(nb::module_& m) {
  def(m, "gat_attention",
      [](Address rowptr, Address col, int64_t n, Address a_src, Address a_dst, Address a_edge, float slope, Address out,
         int64_t heads, int threads) {
        kernels().gat_attention(csr(rowptr, col, n), {at<float>(a_src), at<float>(a_dst), at<float>(a_edge)}, slope,
                                at<float>(out), heads, threads);
      });
  def(m, "gat_attention_backward",
      [](Address rowptr, Address col, int64_t n, Address a_src, Address a_dst, Address a_edge, float slope, Address p,
         Address dp, Address ds, Address da_dst, int64_t heads, int threads) {
        kernels().gat_attention_backward(csr(rowptr, col, n), {at<float>(a_src), at<float>(a_dst), at<float>(a_edge)},
                                         slope, at<float>(p), at<float>(dp), at<float>(ds), at<float>(da_dst), heads,
                                         threads);
      });
  def(m, "edge_sums",
      [](Address rowptr, int64_t n, Address perm, Address values, Address out, int64_t heads, int threads) {
        kernels().edge_sums(csr(rowptr, 0, n), at<int64_t>(perm), at<float>(values), at<float>(out), heads, threads);
      });
  def(m, "gatv2_logits",
      [](Address rowptr, Address col, int64_t n, Address x_src, Address x_dst, Address att, float slope, Address out,
         int64_t cols, int64_t heads, int threads) {
        kernels().gatv2_logits(csr(rowptr, col, n), at<float>(x_src), at<float>(x_dst), at<float>(att), slope,
                               at<float>(out), cols, heads, threads);
      });
  def(m, "gatv2_backward",
      [](Address rowptr, Address col, int64_t n, Address perm, Address own, Address other, Address att, float slope,
         Address dlogits, Address partial, Address dx, Address datt, int64_t cols, int64_t heads, int threads) {
        kernels().gatv2_backward(csr(rowptr, col, n), at<int64_t>(perm), at<float>(own), at<float>(other),
                                 at<float>(att), slope, at<float>(dlogits), at<float>(partial), at<float>(dx),
                                 at<float>(datt), cols, heads, threads);
      });
  def(m, "head_mean",
      [](Address rowptr, Address col, int64_t n, Address value, Address x, Address bias, Address out, int64_t width,
         int64_t heads, int threads) {
        kernels().head_mean(csr(rowptr, col, n), at<float>(value), at<float>(x), at<float>(bias), at<float>(out), width,
                            heads, threads);
      });
  def(m, "head_mean_backward",
      [](Address rowptr, Address col, int64_t n, Address perm, Address value, Address x, Address dout, Address keep,
         Address dx, Address dvalue, int64_t width, int64_t heads, int threads) {
        kernels().head_mean_backward(
            {csr(rowptr, col, n), at<int64_t>(perm), at<float>(value), at<float>(x), at<float>(dout), at<uint8_t>(keep),
             at<float>(dx), at<float>(dvalue), width, heads},
            threads);
      });
}

void define_norm(nb::module_& m) {
  m.def("scratch_floats", &scratch_floats);
  def(m, "column_moments",
      [](Address x, Address partial, Address mean, Address var, int64_t rows, int64_t cols, int threads) {
        kernels().column_moments(at<float>(x), at<float>(partial), at<float>(mean), at<float>(var), rows, cols,
                                 threads);
      });
  def(m, "column_sums", [](Address x, Address partial, Address sums, int64_t rows, int64_t cols, int threads) {
    kernels().column_sums(at<float>(x), at<float>(partial), at<float>(sums), rows, cols, threads);
  });
  def(m, "affine_forward",
      [](Address x, Address scale, Address shift, int act, float slope, double p, uint64_t seed, Address out,
         int64_t rows, int64_t cols, int threads) {
        kernels().affine_forward(at<float>(x), {at<float>(scale), at<float>(shift), nullptr, nullptr},
                                 {act, slope, p, seed}, at<float>(out), rows, cols, threads);
      });
  def(m, "affine_sums",
      [](Address dout, Address x, Address scale, Address shift, Address mean, Address rstd, int act, float slope,
         double p, uint64_t seed, Address partial, Address sum_g, Address sum_gx, int64_t rows, int64_t cols,
         int threads) {
        kernels().affine_sums(
            at<float>(dout), at<float>(x), {at<float>(scale), at<float>(shift), at<float>(mean), at<float>(rstd)},
            {act, slope, p, seed}, at<float>(partial), at<float>(sum_g), at<float>(sum_gx), rows, cols, threads);
      });
  def(m, "affine_backward",
      [](Address dout, Address x, Address scale, Address shift, Address mean, Address by_x, Address constant, int act,
         float slope, double p, uint64_t seed, Address dx, int64_t rows, int64_t cols, int threads) {
        kernels().affine_backward(
            at<float>(dout), at<float>(x), {at<float>(scale), at<float>(shift), at<float>(mean), nullptr},
            {at<float>(by_x), at<float>(constant)}, {act, slope, p, seed}, at<float>(dx), rows, cols, threads);
      });
  def(m, "layer_norm",
      [](Address x, Address weight, Address bias, float eps, int act, float slope, double p, uint64_t seed, Address out,
         Address mean, Address var, int64_t rows, int64_t cols, int threads) {
        kernels().layer_norm(at<float>(x), {at<float>(weight), at<float>(bias), eps}, {act, slope, p, seed},
                             at<float>(out), at<float>(mean), at<float>(var), rows, cols, threads);
      });
  def(m, "layer_norm_backward",
      [](Address dout, Address x, Address weight, Address bias, float eps, int act, float slope, double p,
         uint64_t seed, Address mean, Address var, Address partial, Address dx, Address dweight, Address dbias,
         int64_t rows, int64_t cols, int threads) {
        kernels().layer_norm_backward(at<float>(dout), at<float>(x), {at<float>(weight), at<float>(bias), eps},
                                      {act, slope, p, seed}, at<float>(mean), at<float>(var), at<float>(partial),
                                      at<float>(dx), at<float>(dweight), at<float>(dbias), rows, cols, threads);
      });
}

// Tensors over buffers of the pool, which gets each back when its last owner is gone.
void define_pool(nb::module_& m) {
  m.def("pool_tensor", [](const std::vector<size_t>& shape, int code, int bits) {
    int64_t bytes = bits / 8;
    for (size_t extent : shape) bytes *= int64_t(extent);
    void* buffer = pool_take(bytes);
    if (!buffer) throw std::bad_alloc();
    nb::capsule owner(buffer, [](void* p) noexcept { pool_give(p); });
    const nb::dlpack::dtype type = {uint8_t(code), uint8_t(bits), 1};
    return nb::ndarray<>(buffer, shape.size(), shape.data(), owner, nullptr, type);
  });
  m.def("pool_limit", &pool_limit);
  m.def("pool_leave_room", &pool_leave_room);
  def(m, "use_huge_pages", [](Address address, int64_t bytes) { return use_huge_pages(at<void>(address), bytes); });
  m.def("pool_stats", [] {
    const PoolStats s = pool_stats();
    nb::dict d;
    d["limit_bytes"] = s.limit_bytes;
    d["free_bytes"] = s.free_bytes;
    d["used_bytes"] = s.used_bytes;
    d["hits"] = s.hits;
    d["misses"] = s.misses;
    return d;
  });
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Gossamer's kernels. Called by gossamer.backends.cpu; the ops have checked all arguments.";
  m.def("isa", [] { return std::string(kernels().name); });
  m.def("available_isas", available);
  m.def("use_isa", [](const std::string& name) { return use_kernels(name.c_str()); });
  define_graph(m);
  define_sampling(m);
  define_sparse(m);
  define_codes(m);
  define_int8(m);
  define_integer(m);
  define_features(m);
  define_epilogue(m);
  define_weight_grads(m);
  define_dropout(m);
  define_attention(m);
  define_norm(m);
  define_pool(m);
}
