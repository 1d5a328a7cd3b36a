// Arguments of kernels: structures of addresses and numbers, and sizes that callers must know.
#pragma once
#include <cstdint>

namespace gossamer {

// A sparse matrix in CSR form, [num_dst, num_src]; row i holds the sources of destination i.
struct Csr {
  const int64_t* rowptr;  // [num_dst + 1]
  const int32_t* col;     // [nnz]
  int64_t num_dst;
};

// Weight of edge e = (i, j), head h: dst_scale[i] * value[e, h] * src_scale[j]; a null factor counts as 1. Edges whose
// source has keep[j] = 0 are left out (one head; null: none is).
struct EdgeWeight {
  const float* value;      // [nnz, heads]
  const float* src_scale;  // [num_src]
  const float* dst_scale;  // [num_dst]
  int64_t heads;
  const uint8_t* keep;  // [num_src]
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

// Compressed features, a row of whole bytes each. Of one code per column (ops/gather_codes.py, ops/encode_codes.py):
// `table` has an entry per code, or a threshold between two; its rows have `cols` elements, or one for all columns.
struct ScalarRows {
  const uint8_t* codes;
  int64_t cols;
  int bits;
  const float* table;
  bool per_column;
};
// Of one code per `width` columns: part p of the books is [length, columns of the part] float16, times scale[p].
struct ProductRows {
  const uint8_t* codes;
  int64_t rows, cols, width, length;
  int bits;
  const uint16_t* books;
  const float* scale;
};
// How codes of parts are found: books in blocks of 16 codes (`codes` is a multiple), and what scores start with.
struct CodeSearch {
  const float *books, *start, *inverse_scale;
  int64_t cols, width, codes;
  int bits;
};

// What is added to every row of a neighbour sum: diagonal[i * step] * x_i (times own_scale_i where x is codes; a zero
// adds nothing, and x needs no row i; step 0: one number for all rows, else 1), a bias per column, and row i of `rows`
// [num_dst, cols]; null: nothing.
struct RowEnd {
  const float* bias;
  const float* diagonal;
  int64_t step;
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
// Output rows of int8 codes; each row is multiplied by `factor`, column by column, before it is quantised (null: by 1).
// The first is row `first_row` of a larger tensor: noise is indexed by rows of that tensor.
struct RowCodes {
  int8_t* codes;
  float* scale;
  const float* factor;
  Noise noise;
  int64_t first_row;
};

// How a gradient passes an affine quantiser: everywhere, where the code is in range, or strictly inside of it.
constexpr int kStraightThrough = 0, kClipped = 1;
// Codes 0 .. top with `zero` for 0.0 (ops/fake_quantize.py); scale and its inverse for all columns or for each. Rows
// with keep[i] != 0 stay as they are (null: none does).
struct Quantizer {
  const float *scale, *inverse;
  bool per_column;
  float zero, top;
  int rule;
  const float* row;
  const uint8_t* keep;
};

// What becomes of an integer sum times its factor (ops/requantize.py): times row[i], plus shift[c], plus add[i, c]
// (null: left out), times slope where negative; floats if bits is 32, else codes 0 .. top with `zero` for 0.0, two to a
// byte if bits is 4.
struct Requantize {
  const float *row, *shift, *add;
  float slope;
  int32_t zero, top;
  int bits;
  float* floats;
  uint8_t* codes;
};
// Codes x [rows, in] of 8 or 4 bits, times weights [outs, in], plus bias [outs] (null: 0); mult [outs] is what the sum
// is multiplied by.
struct IntegerProduct {
  const uint8_t* x;
  int bits;
  int64_t in;
  const int8_t* w;
  const int32_t* bias;
  const float* mult;
};
// neighbours * (sum of x_j) + own * x_i, of codes minus their zero point; rows of x are `stride` bytes apart.
struct IntegerSum {
  const uint8_t* x;
  int bits;
  int64_t stride;
  int64_t neighbours, own, zero;
  const float* mult;  // [cols]
};

// Attention on codes x (ops/integer_attention.py): rows are `stride` bytes apart and hold `stored` codes, `padded` of
// each head, of which the first `width` count; terms of logits as in GatTerms; the table of weights and how many of its
// steps make a unit of a logit.
// Where `weighted`, `weights` [nnz] take the place of attention, for one head, and nothing is divided; `own` [num_dst]
// are those of the destinations' own rows.
struct IntegerAttention {
  const uint8_t* x;
  int bits;
  int64_t stride, stored;
  int32_t zero;
  int64_t heads, padded, width;
  const float *a_src, *a_dst, *edge;
  float slope;
  const float* table;
  int64_t table_size;
  float per_step;
  bool mean;
  const float* mult;  // [cols]
  bool weighted;
  const uint8_t *weights, *own;
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

// What an epilogue (norm, activation, dropout) saves for backward (ops/saved_epilogue.py). `codes` with zero and range:
// the normalised rows in few bits, null: not saved. Backward multiplies by `passing` where a bit is set, else by
// `slope`; or by a code of the derivative in slope_bits of [low, low + width]; or by 1. Dropout's mask is recomputed
// from (p, seed) unless p = 0.
struct SavedEpilogue {
  uint8_t* codes;
  void *zero, *range;
  Blocks blocks;
  uint8_t *bits, *slopes;
  int slope_bits;
  float low, width, passing, slope;
  double p;
  uint64_t seed;
};
// Rows first_row .. of an epilogue's input; x points at the first. Statistics are by column if columns.scale is not
// null, by row (written to mean and var) if mean is not null, else there is no norm.
struct EpilogueRows {
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
  const uint8_t* keep;  // zero where a row of dout is; null: none is
  float *dx, *dvalue;
  int64_t width, heads;
};

// How edges are drawn from the rows of a graph (ops/sample_neighbours.py); weight null: all alike.
struct Sampling {
  Csr graph;
  const float* weight;  // [nnz]
  bool replace;
  uint64_t seed;
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

// Backward of one product of an epilogue's result: g [rows, outs], weight and dw [outs, in].
struct ProductGrad {
  const float *g, *weight;
  float* dw;
  int64_t outs;
};

}  // namespace gossamer
