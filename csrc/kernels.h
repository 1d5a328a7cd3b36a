// Every kernel once, as a table of function pointers: one table per instruction set, filled by targets/*.cpp.
// Kernels trust their callers: shapes, types and index ranges are checked in Python before the call.
#pragma once
#include <cstdint>

namespace gossamer {

// A sparse matrix in CSR form, [num_dst, num_src]; row i holds the sources of destination i.
struct Csr {
  const int64_t* rowptr;  // [num_dst + 1]
  const int32_t* col;     // [nnz]
  int64_t num_dst;
};

// Weight of edge e = (i, j), head h: dst_scale[i] * value[e, h] * src_scale[j]; a null factor counts as 1.
struct EdgeWeight {
  const float* value;      // [nnz, heads]
  const float* src_scale;  // [num_src]
  const float* dst_scale;  // [num_dst]
  int64_t heads;
};

// What stochastic rounding and dropout draw from: `on` is false for rounding to nearest.
struct Noise {
  bool on;
  uint64_t seed;
};

// Few-bit blocks over a flat tensor (ops/pack.py): `bits` per value, `block` values share one zero and one range.
struct Blocks {
  int64_t numel;
  int64_t block;
  int bits;
  bool bf16_meta;       // zero and range are stored as bfloat16, else as float
  const float* levels;  // [2^bits] in units of a uniform step; null: uniform
};

// What is added to every row of a neighbour sum: root * x_i (square graphs; times own_scale_i where x is codes), a bias
// per column, and row i of `rows` [num_dst, cols]; null or 0: nothing.
struct RowEnd {
  const float* bias;
  float root;
  const float* rows;
  const float* own_scale;
};

// Rows of symmetric int8 codes (ops/quantize_rows.py): x_ik = scale_i * codes_ik.
struct Int8Rows {
  const int8_t* codes;
  const float* scale;
};
// x w^T + bias (null: none), of `in` columns.
struct Int8Product {
  Int8Rows x, w;
  const float* bias;
  int64_t in;
};
// Where such rows go; each is multiplied by `factor`, column by column, before it is rounded (null: by 1). The first
// is row `first_row` of a larger tensor, which decides its noise.
struct RowCodes {
  int8_t* codes;
  float* scale;
  const float* factor;
  Noise noise;
  int64_t first_row;
};

// Activation (csrc/activation-inl.h) with its slope, then dropout with probability p.
struct Pointwise {
  int act;
  float slope;
  double p;
  uint64_t seed;
};

// z = x * scale + shift per column, where scale = rstd * weight, shift = bias - mean * scale; all null: z = x.
struct ColumnAffine {
  const float *scale, *shift, *mean, *rstd;
};
// The part of dx that comes from the statistics' own dependence on x: by_x * (x - mean) + constant; null: none.
struct Correction {
  const float *by_x, *constant;
};
struct RowAffine {
  const float *weight, *bias;
  float eps;
};

// What a chain of norm, activation and dropout keeps (ops/kept_chain.py). `codes` with zero and range: the normalised
// rows in few bits, null: nothing. What backward multiplies by: `passing` where a bit is set, else `slope`; or a code
// of the derivative in slope_bits of [low, low + width]; or 1. Dropout is made again from (p, seed) unless p = 0.
struct KeptChain {
  uint8_t* codes;
  void *zero, *range;
  Blocks blocks;
  uint8_t *bits, *slopes;
  int slope_bits;
  float low, width, passing, slope;
  double p;
  uint64_t seed;
};
// Rows first_row .. of a chain's input; x points at the first. Statistics by column if columns.scale is there, by row
// (written to mean and var) if those are, else none.
struct ChainRows {
  const float* x;
  ColumnAffine columns;
  RowAffine affine;
  float *mean, *var;
  int64_t first_row, rows, cols;
};

// A product of rows that follow each other: out = rows W^T + bias; weight [outs, columns of the rows], null: no bias.
struct Product {
  const float *weight, *bias;
  float* out;
  int64_t outs;
};

// The three parts of an attention logit: src [num_src, heads], dst [num_dst, heads], edge [nnz, heads]; null: absent.
struct GatTerms {
  const float *src, *dst, *edge;
};

// How a logit becomes a weight: leaky's slope, and the dropout that follows softmax.
struct GatRule {
  float slope;
  double drop;
  uint64_t seed;
};

// What the backward of attention reads and writes beside rows, by source: where in `ds` each edge of the transposed
// graph stands; the terms; log_sums and dots, [num_dst, heads]; room for a record of each destination.
struct GatBackward {
  const int64_t* perm;
  GatTerms terms;
  const float *log_sums, *dots;
  float *ds, *da_src, *records;
  int64_t num_dst, stride;
};

// By head the products of rows with x - origin, [rows, heads]; origin null: 0; out null: none.
struct HeadProducts {
  const float* origin;
  float* out;
  int64_t heads;
};

// A sum of outer products, left [rows, rank] times right [rank, outs]; rank 0: none.
struct Outer {
  const float *left, *right;
  int64_t rank;
};

// Products of finished rows with a few vectors: out[k, i, h] = <row i, att[k]> over the columns of head h, for k below
// `count`; out null: none.
struct HeadTerms {
  const float* att;  // [count, columns]
  float* out;        // [count, rows, heads]
  int64_t count, heads;
};

// What backward of ops/head_mean.py reads and writes: the graph transposed, where in `value` each of its edges stands,
// and rows; dx or dvalue may be null.
struct MeanBackward {
  Csr t;
  const int64_t* perm;
  const float *value, *x, *dout;
  float *dx, *dvalue;
  int64_t width, heads;
};

// Sums over rows are taken in chunks of this many, each with two rows of scratch, padded to whole vectors.
constexpr int64_t kChunkRows = 256;
inline int64_t scratch_floats(int64_t rows, int64_t cols) {
  const int64_t chunks = (rows + kChunkRows - 1) / kChunkRows, padded = (cols + 15) / 16 * 16;
  return 2 * (chunks > 0 ? chunks : 1) * (padded > 0 ? padded : 16);
}

// Weight gradients of int8 rows are taken in chunks of kGradChunk rows, whole chunks to a slab; each slab has its own
// sums, which are added in order. How many there are depends on the sizes alone, never on the number of threads.
constexpr int64_t kGradChunk = 512;
inline int64_t grad_slabs(int64_t rows, int64_t outs, int64_t in) {
  const int64_t chunks = (rows + kGradChunk - 1) / kGradChunk, fit = (int64_t(1) << 23) / (outs * in + 1);
  const int64_t most = fit < 8 ? 8 : fit > 64 ? 64 : fit;
  return chunks < most ? (chunks > 0 ? chunks : 1) : most;
}

// One weight gradient: g [rows, outs], sums of grad_slabs slabs each [outs, in], and the result.
struct WeightGrad {
  const float* g;
  float *partial, *dw;
  int64_t outs;
};

struct Kernels {
  const char* name;
  // ops/spmm.py
  void (*spmm_f32)(Csr, EdgeWeight, RowEnd, const float* x, float* out, int64_t cols, int threads);
  void (*spmm_bf16)(Csr, EdgeWeight, RowEnd, const uint16_t* x, uint16_t* out, int64_t cols, int threads);
  void (*spmm_int8)(Csr, EdgeWeight, RowEnd, const int8_t* x, float* out, int64_t cols, int threads);
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
  // ops/kept_chain.py; false: no memory left for scratch
  bool (*chain_keep)(ChainRows, Pointwise, KeptChain, Noise, float* out, const Product*, int count, int64_t group,
                     int threads);
  bool (*chain_sums)(const float* dout, KeptChain, float* partial, float* sum_g, float* sum_gx, float* sum_hat,
                     int64_t rows, int64_t cols, int threads);
  bool (*chain_backward)(const float* dout, KeptChain, const float* scale, const float* by_hat, const float* constant,
                         float* dx, int64_t rows, int64_t cols, int threads);
  bool (*chain_row_backward)(const float* dout, KeptChain, const float* weight, const float* rstd, float* partial,
                             float* dx, float* dweight, float* dbias, int64_t rows, int64_t cols, int threads);
  bool (*chain_decode)(KeptChain, RowAffine, bool result_kept, float* out, int64_t first_row, int64_t rows,
                       int64_t cols, int threads);
  // ops/weight_grad.py; all gradients share the rows; false: no memory left for scratch
  bool (*weight_grad)(const float* x, const WeightGrad*, int count, int64_t rows, int64_t in, int threads);
  bool (*kept_weight_grad)(KeptChain, RowAffine, bool result_kept, const WeightGrad*, int count, int64_t rows,
                           int64_t in, int threads);
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
  // ops/int8_linear.py and the other products of int8 rows; false: no memory left for scratch
  bool (*int8_linear)(const Int8Product*, int count, const float* added, Outer, float* out, RowCodes to, HeadTerms,
                      int64_t rows, int64_t out_features, int threads);
  bool (*spmm_rows)(Csr, EdgeWeight, RowEnd, const int8_t* x, RowCodes to, int64_t cols, int threads);
  bool (*quantize_times)(const float* x, RowCodes to, int64_t rows, int64_t cols, int threads);
  bool (*chain_rows)(ChainRows, Pointwise, RowCodes to, int threads);
  bool (*affine_backward_rows)(const float* dout, const float* x, ColumnAffine, Correction, Pointwise,
                               const RowCodes* two, HeadProducts with_x, float* partial, float* sums, int64_t rows,
                               int64_t cols, int threads);
  bool (*int8_grad_f32)(const float* g, const float* row_scale, const int8_t* x, uint64_t seed, float* partial,
                        float* dw, int64_t rows, int64_t outs, int64_t in, int threads);
  bool (*int8_grad_int8)(const int8_t* g, const float* row_scale, const int8_t* x, uint64_t seed, float* partial,
                         float* dw, int64_t rows, int64_t outs, int64_t in, int threads);
  void (*int8_grad_exact)(const float* g, Int8Rows x, float* partial, float* dw, int64_t rows, int64_t outs, int64_t in,
                          int threads);
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

// csr.cpp: no SIMD, hence one build. Each returns the first offending position, or -1.
int64_t coo_to_csr(const void* dst, const void* src, int index_bytes, int64_t nnz, int64_t num_dst, int64_t num_src,
                   int64_t* rowptr, int32_t* col, int64_t* perm, int threads);
void transpose_csr(Csr, int64_t num_src, int64_t* t_rowptr, int32_t* t_col, int64_t* t_perm, int threads);
int64_t check_rowptr(const int64_t* rowptr, int64_t num_dst, int64_t nnz);
int64_t check_ids(const void* ids, int index_bytes, int64_t count, int64_t limit, int threads);

}  // namespace gossamer
