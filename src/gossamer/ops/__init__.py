"""What each computation means: one page per op with its formula, reference, shape rule and gradient.

Each is a PyTorch op, `torch.ops.gossamer.<name>`, that autograd, `torch.compile` and export see; its arguments may be
named structures (`Epilogue`, `Packing`, `SavedEpilogue`, `QRows`, `Sparse`). Where a function of the same name takes a
`Graph` or fills in defaults, the op itself is `<name>_op` in the function's module. Edge tensors are in the graph's CSR
order (`Graph.sort_edges`).
"""

from ._library import IMPLEMENTED, OPS
from .attention import gat_attention
from .chain_backward import chain_backward
from .chain_keep import chain_keep
from .chain_products_backward import chain_products_backward
from .csr import coo_to_csr, transpose_csr
from .dropout import dropout, dropout_keeping_mask, masked_scale, relu_dropout
from .edge_softmax import edge_softmax
from .gat_int8 import gat_backward_int8, gat_dots_int8, gat_sum_int8, int8_linear_heads
from .gather_rows import gather_packed_rows, gather_rows, gather_rows_int8
from .gatv2 import gatv2_logits
from .head_mean import head_mean_spmm
from .int8_grad import int8_grad, int8_grad_exact
from .int8_linear import int8_linear, int8_linear_plus, int8_linear_two
from .int8_rows import chain_keep_rows, chain_rows, int8_linear_rows, kept_codes, quantize_times, spmm_rows
from .kept_chain import kept_products
from .linear import column_sums, linear
from .norm_act import norm_act, norm_act_backward
from .norm_act_backward_rows import norm_act_backward_rows
from .pack import pack
from .pack_fixed import pack_fixed, unpack_fixed
from .quantize_rows import dequantize_rows, quantize_rows
from .random import random_bits
from .sddmm import sddmm
from .sddmm_int8 import sddmm_int8
from .spmm import spmm
from .spmm_int8 import spmm_int8
from .spmm_max import spmm_max
from .unpack import unpack
from .weight_grad import weight_grad

__all__ = [
    "IMPLEMENTED",
    "OPS",
    "chain_backward",
    "chain_keep",
    "chain_keep_rows",
    "chain_products_backward",
    "chain_rows",
    "column_sums",
    "coo_to_csr",
    "dequantize_rows",
    "dropout",
    "dropout_keeping_mask",
    "edge_softmax",
    "gat_attention",
    "gat_backward_int8",
    "gat_dots_int8",
    "gat_sum_int8",
    "gather_packed_rows",
    "gather_rows",
    "gather_rows_int8",
    "gatv2_logits",
    "head_mean_spmm",
    "int8_grad",
    "int8_grad_exact",
    "int8_linear",
    "int8_linear_heads",
    "int8_linear_plus",
    "int8_linear_rows",
    "int8_linear_two",
    "kept_codes",
    "kept_products",
    "linear",
    "masked_scale",
    "norm_act",
    "norm_act_backward",
    "norm_act_backward_rows",
    "pack",
    "pack_fixed",
    "quantize_rows",
    "quantize_times",
    "random_bits",
    "relu_dropout",
    "sddmm",
    "sddmm_int8",
    "spmm",
    "spmm_int8",
    "spmm_max",
    "spmm_rows",
    "transpose_csr",
    "unpack",
    "unpack_fixed",
    "weight_grad",
]
