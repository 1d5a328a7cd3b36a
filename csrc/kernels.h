// Every kernel once, as a table of function pointers: one table per instruction set, filled by targets/*.cpp.
// Kernels trust their callers: shapes, types and index ranges are checked in Python before the call.
#pragma once
#include <cstdint>

#include "arguments.h"

namespace gossamer {

struct Kernels {
  const char* name;
  // ops/spmm.py; false: no memory left for scratch
  bool (*spmm_f32)(Csr, EdgeWeight, RowEnd, const float* x, float* out, int64_t cols, int threads);
  bool (*spmm_bf16)(Csr, EdgeWeight, RowEnd, const uint16_t* x, uint16_t* out, int64_t cols, int threads);
  bool (*spmm_int8)(Csr, EdgeWeight, RowEnd, const int8_t* x, float* out, int64_t cols, int threads);
  void (*spmm_max)(Csr, EdgeWeight, const float* x, float* out, void* winner, int winner_bytes, int64_t cols,
                   int threads);
  bool (*spmm_max_backward)(Csr, EdgeWeight, const float* dout, const void* winner, int winner_bytes, float* dx,
                            int64_t cols, int threads);
  // ops/sddmm.py
  void (*sddmm)(Csr, const float* a, const float* b, float* out, int64_t cols, int64_t heads, int threads);
  // ops/edge_softmax.py
  void (*edge_softmax)(Csr, const float* logits, float* out, int64_t heads, int threads);
  void (*edge_softmax_backward)(Csr, const float* out, const float* dout, float* dlogits, int64_t heads, int threads);
  // ops/attention.py
  void (*gat_attention)(Csr, GatTerms, float slope, float* out, int64_t heads, int threads);
  void (*gat_attention_backward)(Csr, GatTerms, float slope, const float* p, const float* dp, float* ds, float* da_dst,
                                 int64_t heads, int threads);
  void (*edge_sums)(Csr, const int64_t* perm, const float* values, float* out, int64_t heads, int threads);
  void (*gatv2_logits)(Csr, const float* x_src, const float* x_dst, const float* att, float slope, float* out,
                       int64_t cols, int64_t heads, int threads);
  void (*gatv2_backward)(Csr, const int64_t* perm, const float* own, const float* other, const float* att, float slope,
                         const float* dlogits, float* partial, float* dx, float* datt, int64_t cols, int64_t heads,
                         int threads);
  // ops/head_mean.py
  void (*head_mean)(Csr, const float* value, const float* x, const float* bias, float* out, int64_t width,
                    int64_t heads, int threads);
  void (*head_mean_backward)(MeanBackward, int threads);
  // ops/norm_act.py; `partial` is scratch of scratch_floats(rows, cols)
  void (*column_moments)(const float* x, float* partial, float* mean, float* var, int64_t rows, int64_t cols,
                         int threads);
  void (*column_sums)(const float* x, float* partial, float* sums, int64_t rows, int64_t cols, int threads);
  void (*affine_forward)(const float* x, ColumnAffine, Pointwise, float* out, int64_t rows, int64_t cols, int threads);
  void (*affine_sums)(const float* dout, const float* x, ColumnAffine, Pointwise, float* partial, float* sum_g,
                      float* sum_gx, int64_t rows, int64_t cols, int threads);
  void (*affine_backward)(const float* dout, const float* x, ColumnAffine, Correction, Pointwise, float* dx,
                          int64_t rows, int64_t cols, int threads);
  void (*layer_norm)(const float* x, RowAffine, Pointwise, float* out, float* mean, float* var, int64_t rows,
                     int64_t cols, int threads);
  void (*layer_norm_backward)(const float* dout, const float* x, RowAffine, Pointwise, const float* mean,
                              const float* var, float* partial, float* dx, float* dweight, float* dbias, int64_t rows,
                              int64_t cols, int threads);
  // ops/saved_epilogue.py; false: no memory left for scratch
  bool (*save_epilogue)(EpilogueRows, Pointwise, SavedEpilogue, Noise, float* out, const Product*, int count,
                        int64_t group, int threads);
  bool (*saved_epilogue_sums)(const float* dout, SavedEpilogue, float* partial, float* sum_g, float* sum_gx,
                              float* sum_hat, int64_t rows, int64_t cols, int threads);
  bool (*saved_epilogue_backward)(const float* dout, SavedEpilogue, const float* scale, const float* by_hat,
                                  const float* constant, float* dx, int64_t rows, int64_t cols, int threads);
  bool (*saved_epilogue_row_backward)(const float* dout, SavedEpilogue, const float* weight, const float* rstd,
                                      float* partial, float* dx, float* dweight, float* dbias, int64_t rows,
                                      int64_t cols, int threads);
  bool (*decode_epilogue)(SavedEpilogue, RowAffine, bool result_saved, float* out, int64_t first_row, int64_t rows,
                          int64_t cols, int threads);
  // ops/weight_grad.py; all gradients share the rows; false: no memory left for scratch
  bool (*weight_grad)(const float* x, const WeightGrad*, int count, int64_t rows, int64_t in, int threads);
  bool (*saved_weight_grad)(SavedEpilogue, RowAffine, bool result_saved, const WeightGrad*, int count, int64_t rows,
                            int64_t in, int threads);
  // ops/epilogue_products_backward.py; partial: [grad_slabs, cols, outs of all products, filled up to whole vectors]
  bool (*epilogue_products_backward)(const float* x, ColumnAffine, Pointwise, const ProductGrad*, int count,
                                     float* partial, float* dz, int64_t rows, int64_t cols, int threads);
  // ops/quantize_rows.py
  void (*quantize_rows)(const float* x, int8_t* codes, float* scale, int64_t rows, int64_t cols, Noise, int threads);
  void (*dequantize_rows)(const int8_t* codes, const float* scale, float* out, int64_t rows, int64_t cols, int threads);
  // ops/pack.py
  void (*pack)(const float* x, Blocks, uint8_t* codes, void* zero, void* range, Noise, int threads);
  void (*unpack)(const uint8_t* codes, const void* zero, const void* range, Blocks, float* out, int threads);
  // ops/pack_fixed.py
  void (*pack_fixed)(const float* x, int64_t numel, int bits, float low, float range, Noise, uint8_t* codes,
                     int threads);
  void (*unpack_fixed)(const uint8_t* codes, int64_t numel, int bits, float low, float range, float* out, int threads);
  // ops/random.py, ops/dropout.py
  void (*random_bits)(uint64_t seed, int64_t offset, uint32_t* out, int64_t numel, int threads);
  void (*dropout)(const float* x, float* out, uint8_t* mask, int64_t numel, double p, uint64_t seed, int threads);
  void (*relu_dropout)(const float* x, float* out, uint8_t* mask, int64_t numel, double p, uint64_t seed, int threads);
  void (*masked_scale)(const float* x, const uint8_t* mask, float* out, int64_t numel, double p, int threads);
  // ops/gather_rows.py
  void (*gather_rows)(const char* x, const int64_t* ids, char* out, int64_t count, int64_t row_bytes, int threads);
  void (*gather_rows_int8)(const int8_t* codes, const float* scale, const int64_t* ids, float* out, int64_t count,
                           int64_t cols, int threads);
  void (*gather_packed)(const uint8_t* codes, const void* zero, const void* range, const int64_t* ids, float* out,
                        int64_t count, int64_t cols, int bits, bool bf16_meta, int threads);
  // ops/gather_codes.py
  void (*gather_scalar_f32)(ScalarRows, const int64_t* ids, float* out, int64_t count, int threads);
  void (*gather_scalar_bf16)(ScalarRows, const int64_t* ids, uint16_t* out, int64_t count, int threads);
  void (*gather_product_f32)(ProductRows, const int64_t* ids, float* out, int64_t count, int threads);
  void (*gather_product_bf16)(ProductRows, const int64_t* ids, uint16_t* out, int64_t count, int threads);
  // ops/spmm_scalar.py
  void (*spmm_scalar)(Csr, EdgeWeight, RowEnd, ScalarRows, float* out, int threads);
  // ops/encode_codes.py; bad [chunks of rows]: the first row that is not finite; false: no memory left for scratch
  void (*encode_scalar)(const float* x, ScalarRows to, uint8_t* codes, int64_t rows, int64_t chunk_rows, int64_t* bad,
                        int threads);
  bool (*encode_product)(const float* x, CodeSearch, uint8_t* codes, int64_t rows, int64_t chunk_rows, int64_t* bad,
                         int threads);
  // ops/row_products.py; false: no memory left for scratch
  bool (*row_products)(const float* x, Product, int64_t rows, int64_t cols, int threads);
  // ops/int8_linear.py and the other products of int8 rows; false: no memory left for scratch
  bool (*int8_linear)(const Int8Product*, int count, const float* added, Outer, float* out, RowCodes to, HeadTerms,
                      int64_t rows, int64_t out_features, int threads);
  bool (*spmm_rows)(Csr, EdgeWeight, RowEnd, const int8_t* x, RowCodes to, int64_t cols, int threads);
  bool (*quantize_times)(const float* x, RowCodes to, int64_t rows, int64_t cols, int threads);
  bool (*epilogue_rows)(EpilogueRows, Pointwise, RowCodes to, int threads);
  bool (*affine_backward_rows)(const float* dout, const float* x, ColumnAffine, Correction, Pointwise,
                               const RowCodes* two, HeadProducts with_x, float* partial, float* sums, int64_t rows,
                               int64_t cols, int threads);
  bool (*int8_grad_f32)(const float* g, const float* row_scale, const int8_t* x, uint64_t seed, float* partial,
                        float* dw, int64_t rows, int64_t outs, int64_t in, int threads);
  bool (*int8_grad_int8)(const int8_t* g, const float* row_scale, const int8_t* x, uint64_t seed, float* partial,
                         float* dw, int64_t rows, int64_t outs, int64_t in, int threads);
  void (*int8_grad_exact)(const float* g, Int8Rows x, float* partial, float* dw, int64_t rows, int64_t outs, int64_t in,
                          int threads);
  // ops/fake_quantize.py; histogram false: no memory left for scratch
  void (*fake_quantize)(const float* x, Quantizer, float* out, uint8_t* bits, int64_t rows, int64_t cols, int threads);
  void (*fake_quantize_backward)(const float* dout, const float* row, const uint8_t* bits, float* dx, int64_t rows,
                                 int64_t cols, int threads);
  bool (*histogram)(const float* x, const float* row, const uint8_t* keep, float low, float per_unit, int64_t bins,
                    int64_t* counts, int64_t rows, int64_t cols, int threads);
  // ops/requantize.py, ops/integer_linear.py, ops/integer_sum.py; false: no memory left for scratch
  void (*quantize_affine)(const float* x, int64_t in, const float* mult, Requantize, int64_t* bad, int64_t rows,
                          int64_t cols, int threads);
  void (*requantize)(const uint8_t* x, int bits, int64_t stride, int32_t zero, const float* mult, Requantize,
                     int64_t rows, int64_t cols, int threads);
  bool (*integer_linear)(const IntegerProduct*, int count, Requantize, int64_t rows, int64_t outs, int threads);
  bool (*integer_sum)(Csr, IntegerSum, Requantize, int64_t cols, int threads);
  void (*integer_max)(Csr, const uint8_t* x, int bits, int64_t stride, int32_t zero, uint8_t* out, int threads);
  bool (*integer_attention)(Csr, IntegerAttention, Requantize, int64_t cols, int threads);
  // ops/row_selection.py
  void (*row_norms)(const float* x, float* out, int64_t rows, int64_t cols, int threads);
  void (*row_norms_int8)(Int8Rows x, float* out, int64_t rows, int64_t cols, int threads);
  // ops/sddmm_int8.py
  void (*sddmm_int8)(Csr, Int8Rows a, Int8Rows b, float* out, int64_t cols, int64_t heads, int threads);
  // ops/gat_int8.py; false: no memory left for scratch
  bool (*gat_sum_int8)(Csr, GatTerms, GatRule, Int8Rows h, const float* bias, float* out, float* log_sums, Int8Rows g,
                       float* dots, int64_t cols, int64_t heads, int threads);
  bool (*gat_backward_int8)(Csr transposed, GatBackward, GatRule, Int8Rows g, Int8Rows h, float* out, RowCodes to,
                            int64_t cols, int64_t heads, int threads);
};

// One per translation unit in targets/; null when that unit was not built for this architecture.
extern const Kernels* const baseline_kernels;
extern const Kernels* const avx2_kernels;
extern const Kernels* const avx512_kernels;
extern const Kernels* const avx512vnni_kernels;

// isa.cpp: the table in use, chosen once from the processor, and how to change it.
const Kernels& kernels();
bool use_kernels(const char* name);      // false: unknown, not built, or not supported by this processor
const char* const* available_kernels();  // null-terminated, slowest first

// csr.cpp: no SIMD, hence one build. Those that check return the first offending position, or -1.
int64_t coo_to_csr(const void* dst, const void* src, int index_bytes, int64_t nnz, int64_t num_dst, int64_t num_src,
                   int64_t* rowptr, int32_t* col, int64_t* perm, int threads);
void transpose_csr(Csr, int64_t num_src, int64_t* t_rowptr, int32_t* t_col, int64_t* t_perm, int threads);
void count_loops(Csr, int64_t* loops, int threads);
void split_loops(Csr, const float* value, const int64_t* kept_rowptr, int32_t* kept_col, float* kept_value,
                 float* diagonal, int threads);
int64_t check_rowptr(const int64_t* rowptr, int64_t num_dst, int64_t nnz);
int64_t check_ids(const void* ids, int index_bytes, int64_t count, int64_t limit, int threads);

// row_selection.cpp: no SIMD, hence one build.
void nonzero_rows(const float* x, int64_t rows, int64_t cols, uint8_t* keep, int threads);
void top_rows(const float* key, const int64_t* cost, int64_t rows, int64_t budget, uint8_t* keep, int threads);
int64_t count_kept(Csr, const uint8_t* keep, uint64_t* kept, int64_t* before, int64_t* kept_rowptr, int threads);
void filter_edges(Csr, const float* value, const uint64_t* kept, const int64_t* before, int32_t* kept_col,
                  float* kept_value, int threads);

// sample_neighbours.cpp: no SIMD, hence one build.
int64_t count_sampled(Sampling, const int64_t* rows, int64_t count, int64_t fanout, int64_t* rowptr, int threads);
void sample_edges(Sampling, const int64_t* rows, int64_t count, int64_t fanout, const int64_t* rowptr, int32_t* source,
                  int64_t* edge, int threads);
int64_t number_seeds(const int64_t* seeds, int64_t count, int64_t* n_id, uint32_t* table);
int64_t number_sources(int32_t* col, int64_t count, int64_t known, int64_t* n_id, uint32_t* table, bool more,
                       int32_t* room, int threads);

// codes.cpp: no SIMD, hence one build.
void pack_ids(const int32_t* ids, int64_t rows, int64_t parts, int bits, uint8_t* packed, int threads);
void unpack_ids(const uint8_t* packed, int64_t rows, int64_t parts, int bits, int32_t* ids, int threads);
void code_sums(const float* x, const uint8_t* codes, int64_t rows, int64_t cols, int64_t width, int64_t length,
               int bits, double* sums, int64_t* counts, int threads);
void rank_rows(const uint8_t* level, const int32_t* rank, int64_t bytes, const int64_t* ids, int64_t count,
               int64_t* first_ids, int64_t* second_ids, int threads);

}  // namespace gossamer
