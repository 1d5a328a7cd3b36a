// All kernel bodies, compiled for the instruction set of the including file, in the namespace GOSSAMER_TARGET.
#include "kernels.h"
#include "parallel.h"
#include "simd.h"

namespace gossamer {
namespace GOSSAMER_TARGET {

#include "simd-inl.h"

#include "random-inl.h"

#include "spmm-inl.h"

#include "spmm_max-inl.h"

#include "sddmm-inl.h"

#include "edge_softmax-inl.h"

#include "quantize_rows-inl.h"
//
#include "row_selection-inl.h"

#include "fake_quantize-inl.h"

#include "pack-inl.h"

#include "pack_fixed-inl.h"

#include "dropout-inl.h"

#include "activation-inl.h"

#include "norm_act-inl.h"

#include "layer_norm-inl.h"

#include "linear-inl.h"

#include "save_epilogue-inl.h"

#include "saved_epilogue-inl.h"

#include "attention-inl.h"

#include "head_mean-inl.h"

#include "gather_rows-inl.h"

#include "gather_codes-inl.h"

#include "spmm_scalar-inl.h"

#include "encode_codes-inl.h"

#include "row_products-inl.h"

#include "int8_linear-inl.h"

#include "int8_rows-inl.h"

#include "requantize-inl.h"

#include "integer_linear-inl.h"

#include "integer_sum-inl.h"

#include "edge_codes-inl.h"

#include "gat_int8-inl.h"

#include "integer_attention-inl.h"

#include "gat_backward_int8-inl.h"

#include "int8_grad-inl.h"

#include "weight_grad-inl.h"

#include "epilogue_products_backward-inl.h"

#define GOSSAMER_STRING(name) #name
#define GOSSAMER_NAME(name) GOSSAMER_STRING(name)

static const Kernels table = {
    GOSSAMER_NAME(GOSSAMER_TARGET),
    spmm<float, float>,
    spmm<uint16_t, uint16_t>,
    spmm<int8_t, float>,
    spmm_max,
    spmm_max_backward,
    sddmm,
    edge_softmax,
    edge_softmax_backward,
    gat_attention,
    gat_attention_backward,
    edge_sums,
    gatv2_logits,
    gatv2_backward,
    head_mean,
    head_mean_backward,
    column_moments,
    column_sums,
    affine_forward,
    affine_sums,
    affine_backward,
    layer_norm,
    layer_norm_backward,
    save_epilogue,
    saved_epilogue_sums,
    saved_epilogue_backward,
    saved_epilogue_row_backward,
    decode_epilogue,
    weight_grad,
    saved_weight_grad,
    epilogue_products_backward,
    quantize_rows,
    dequantize_rows,
    pack,
    unpack,
    pack_fixed,
    unpack_fixed,
    random_bits,
    dropout,
    relu_dropout,
    masked_scale,
    gather_rows,
    gather_rows_int8,
    gather_packed,
    gather_scalar<float>,
    gather_scalar<uint16_t>,
    gather_product<float>,
    gather_product<uint16_t>,
    spmm_scalar,
    encode_scalar,
    encode_product,
    row_products,
    int8_linear,
    spmm_rows,
    quantize_times,
    epilogue_rows,
    affine_backward_rows,
    int8_grad<float>,
    int8_grad<int8_t>,
    int8_grad_exact,
    fake_quantize,
    fake_quantize_backward,
    histogram,
    quantize_affine,
    requantize,
    integer_linear,
    integer_sum,
    integer_max,
    integer_attention,
    row_norms,
    row_norms_int8,
    sddmm_int8,
    gat_sum_int8,
    gat_backward_int8,
};

}  // namespace GOSSAMER_TARGET
}  // namespace gossamer
