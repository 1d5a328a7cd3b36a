"""What each computation means: one page per op with its formula, reference, shape rule and gradient.

Each is a PyTorch op, `torch.ops.gossamer.<name>`, that autograd, `torch.compile` and export see; its arguments may be
named structures (`Epilogue`, `Packing`, `SavedEpilogue`, `QRows`, `Sparse`). Where a function of the same name takes a
`Graph` or fills in defaults, the op itself is `<name>_op` in the function's module. Edge tensors are in the graph's CSR
order (`Graph.sort_edges`).
"""

from ._library import IMPLEMENTED, OPS
from .attention import gat_attention
from .code_sums import code_sums
from .csr import coo_to_csr, count_loops, split_loops, transpose_csr
from .dropout import dropout, dropout_saving_mask, masked_scale, relu_dropout
from .edge_softmax import edge_softmax
from .encode_codes import encode_product, encode_scalar
from .epilogue_products_backward import epilogue_products_backward
from .fake_quantize import fake_quantize, histogram
from .gat_int8 import gat_backward_int8, gat_dots_int8, gat_sum_int8, int8_linear_heads
from .gather_codes import gather_product, gather_product_into, gather_scalar, gather_scalar_into
from .gather_rows import gather_packed_rows, gather_rows, gather_rows_int8
from .gatv2 import gatv2_logits
from .head_mean import head_mean_spmm
from .int8_grad import int8_grad, int8_grad_exact
from .int8_linear import int8_linear, int8_linear_plus, int8_linear_two
from .int8_rows import epilogue_rows, int8_linear_rows, quantize_times, save_epilogue_rows, saved_codes, spmm_rows
from .integer_attention import integer_attention
from .integer_linear import integer_linear, integer_linear_two
from .integer_max import integer_max
from .integer_sum import integer_sum
from .integer_weighted_sum import integer_weighted_sum
from .linear import column_sums, linear
from .norm_act import norm_act, norm_act_backward
from .norm_act_backward_rows import norm_act_backward_rows
from .pack import pack
from .pack_fixed import pack_fixed, unpack_fixed
from .pack_ids import pack_ids, unpack_ids
from .quantize_rows import dequantize_rows, quantize_rows
from .random import random_bits
from .rank_rows import rank_rows
from .requantize import quantize_affine, requantize
from .row_products import row_products
from .row_selection import filter_edges, nonzero_rows, row_norms, row_norms_int8, top_rows
from .sample_neighbours import sample_edges, sample_neighbours
from .save_epilogue import save_epilogue
from .saved_epilogue import saved_products
from .saved_epilogue_backward import saved_epilogue_backward
from .sddmm import sddmm
from .sddmm_int8 import sddmm_int8
from .spmm import spmm
from .spmm_int8 import spmm_int8
from .spmm_max import spmm_max
from .spmm_scalar import spmm_scalar
from .unpack import unpack
from .weight_grad import weight_grad

__all__ = [
    "IMPLEMENTED",
    "OPS",
    "code_sums",
    "column_sums",
    "coo_to_csr",
    "count_loops",
    "dequantize_rows",
    "dropout",
    "dropout_saving_mask",
    "edge_softmax",
    "encode_product",
    "encode_scalar",
    "epilogue_products_backward",
    "epilogue_rows",
    "fake_quantize",
    "filter_edges",
    "gat_attention",
    "gat_backward_int8",
    "gat_dots_int8",
    "gat_sum_int8",
    "gather_packed_rows",
    "gather_product",
    "gather_product_into",
    "gather_rows",
    "gather_rows_int8",
    "gather_scalar",
    "gather_scalar_into",
    "gatv2_logits",
    "head_mean_spmm",
    "histogram",
    "int8_grad",
    "int8_grad_exact",
    "int8_linear",
    "int8_linear_heads",
    "int8_linear_plus",
    "int8_linear_rows",
    "int8_linear_two",
    "integer_attention",
    "integer_linear",
    "integer_linear_two",
    "integer_max",
    "integer_sum",
    "integer_weighted_sum",
    "linear",
    "masked_scale",
    "nonzero_rows",
    "norm_act",
    "norm_act_backward",
    "norm_act_backward_rows",
    "pack",
    "pack_fixed",
    "pack_ids",
    "quantize_affine",
    "quantize_rows",
    "quantize_times",
    "random_bits",
    "rank_rows",
    "relu_dropout",
    "requantize",
    "row_norms",
    "row_norms_int8",
    "row_products",
    "sample_edges",
    "sample_neighbours",
    "save_epilogue",
    "save_epilogue_rows",
    "saved_codes",
    "saved_epilogue_backward",
    "saved_products",
    "sddmm",
    "sddmm_int8",
    "split_loops",
    "spmm",
    "spmm_int8",
    "spmm_max",
    "spmm_rows",
    "spmm_scalar",
    "top_rows",
    "transpose_csr",
    "unpack",
    "unpack_fixed",
    "unpack_ids",
    "weight_grad",
]
