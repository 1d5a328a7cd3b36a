from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.nn import functional

from gossamer.ops import OPS, column_sums, linear
from support.compare import UNIT, assert_sums_agree, on_baseline, random_cotangent, same, same_sums, with_gradients
from support.tensors import rand

ROWS = (0, 1, 2, 255, 256, 257, 513)
COLUMNS = (0, 1, 7, 16, 17, 64, 130)
INPUTS = ("x", "weight", "bias", "rows")


def operands(rows, columns, outputs, dtype=torch.float32):
    shapes = ((rows, columns), (outputs, columns), (outputs,), (rows, outputs))
    return [rand(*shape, seed=k, dtype=dtype) for k, shape in enumerate(shapes)]


@pytest.mark.parametrize("ends", [(), ("bias",), ("rows",), ("bias", "rows")], ids=lambda e: " and ".join(e) or "none")
def test_equals_the_reference(ends):
    """Forward and every gradient: sums of as many terms as there are columns, outputs or rows."""
    for turn, rows in enumerate(ROWS):
        for columns in COLUMNS:
            tensors = operands(rows, columns, COLUMNS[turn])
            given = [tensors[INPUTS.index(name)] for name in ("x", "weight", *ends)]
            pair = (
                lambda x, w, *rest, op=op: op(x, w, *(dict(zip(ends, rest, strict=True)).get(n) for n in INPUTS[2:]))
                for op in (OPS["linear"], OPS["linear"].reference)
            )
            assert_sums_agree(*pair, given, max(rows, columns, COLUMNS[turn]))


def test_equals_torchs_function():
    x, weight, bias, rows = operands(300, 17, 7, torch.float64)
    got = with_gradients(linear, [x, weight, bias, rows], random_cotangent)
    want = with_gradients(lambda x, w, b, r: functional.linear(x, w, b) + r, [x, weight, bias, rows], random_cotangent)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(linear(x, weight), functional.linear(x, weight))
    torch.testing.assert_close(linear(x, weight, bias), functional.linear(x, weight, bias))


def test_strides_change_nothing():
    for tensors in (operands(40, 17, 7), operands(1, 17, 1)):
        strided = [torch.stack([t, t], -1)[..., 0] for t in tensors]
        turned = [t.t().contiguous().t() for t in tensors[:2]]
        want = with_gradients(linear, tensors, random_cotangent)
        for other in (strided, [*turned, *strided[2:]]):
            leaves = [t.requires_grad_() for t in other]
            out = linear(*leaves)
            dout = torch.stack([random_cotangent(out)] * 2, -1)[..., 0]
            torch.testing.assert_close((out, torch.autograd.grad(out, leaves, dout)), want)


def test_nan_and_infinity_stay_visible():
    x, weight, bias, rows = operands(5, 4, 3)
    x[1, 2], rows[3, 1], bias[2] = torch.nan, torch.inf, -torch.inf
    out = linear(x, weight, bias, rows)
    assert out[1].isnan().all() and out[3, 1] == torch.inf and not out[[0, 2, 3, 4], 2].isfinite().any()
    assert out[[0, 2, 4], :2].isfinite().all()


@pytest.mark.parametrize(
    "learns, kept",
    [
        (("x",), {"weight"}),
        (("x", "bias"), {"weight"}),
        (("weight",), {"x", "weight"}),
        (("x", "weight", "bias", "rows"), {"x", "weight"}),
        (("rows",), {"weight"}),
    ],
)
def test_x_is_kept_only_for_the_weights_gradient(learns, kept):
    tensors = dict(zip(INPUTS, operands(50, 8, 6), strict=True))
    held = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        linear(*(t.requires_grad_(name in learns) for name, t in tensors.items()))
    assert sorted(t.data_ptr() for t in held) == sorted(tensors[name].data_ptr() for name in kept)


def test_gradcheck():
    leaves = [t.requires_grad_() for t in operands(5, 4, 3, torch.float64)]
    assert gradcheck(linear, leaves)
    assert gradcheck(linear, leaves[:2]) and gradgradcheck(linear, leaves[:2])


def test_second_gradients():
    leaves = [t.double().requires_grad_() for t in operands(5, 4, 3)]
    assert torch.autograd.gradgradcheck(linear, leaves)


def test_column_sums(isa):
    """Chunks of 256 rows in float32, 8 + 32 additions deep, merged in float64."""
    for rows in ROWS:
        for columns in COLUMNS:
            x = 100 + rand(rows, columns)
            sums, want = column_sums(x), x.double().sum(0)
            assert sums.shape == (columns,)
            assert ((sums.double() - want).abs() <= (8 + 32 + 2) * UNIT * x.double().abs().sum(0)).all()
    strided = torch.stack([x, x], -1)[..., 0]
    assert same_sums(column_sums(strided), column_sums(x)) and same_sums(
        column_sums(x.t().contiguous().t()), column_sums(x)
    )


def test_column_sums_of_other_types_and_special_numbers(isa):
    x = rand(300, 17)
    for dtype in (torch.float64, torch.bfloat16):
        assert same(column_sums(x.to(dtype)), x.to(dtype).sum(0))
    x[299, 3], x[0, 4], x[7, 5], x[8, 5] = torch.nan, torch.inf, torch.inf, -torch.inf
    sums = column_sums(x)
    assert sums[[3, 5]].isnan().all() and sums[4] == torch.inf
    assert sums[[0, 1, 2, 6, 16]].isfinite().all()


def test_column_sums_have_the_same_bits_everywhere(isa, threads):
    for shape in ((3000, 130), (513, 7)):
        assert same_sums(column_sums(rand(*shape)), on_baseline(lambda shape=shape: column_sums(rand(*shape))))


def test_opcheck():
    leaves = [t.requires_grad_() for t in operands(5, 4, 3)]
    opcheck(OPS["linear"].overload, (*leaves[:2], None, None))
    opcheck(OPS["linear"].overload, tuple(leaves))
    opcheck(OPS["column_sums"].overload, (rand(5, 4),))


X, W = rand(5, 4), rand(3, 4)


@pytest.mark.parametrize(
    "error, message, args",
    [
        (TypeError, "`x` must be float32 or float64.*bfloat16", (X.bfloat16(), W)),
        (ValueError, r"`x`.*\[rows, in_features\].*\(4,\)", (rand(4), W)),
        (TypeError, "`weight` must be float32.*float64", (X, W.double())),
        (ValueError, r"`weight`.*\[out_features, 4\], as many columns as x.*\(4, 3\)", (X, rand(4, 3))),
        (TypeError, "`bias` must be float32.*float64", (X, W, rand(3).double())),
        (ValueError, r"`bias`.*\[3\], one number per output column.*\(4,\)", (X, W, rand(4))),
        (TypeError, "`rows` must be float32.*bfloat16", (X, W, None, rand(5, 3).bfloat16())),
        (ValueError, r"`rows`.*of the result, \(5, 3\).*\(1, 3\)", (X, W, None, rand(1, 3))),
    ],
)
def test_bad_arguments(error, message, args):
    with pytest.raises(error, match=message):
        linear(*args)


@pytest.mark.parametrize("error, x", [(ValueError, rand(4)), (TypeError, X.long())])
def test_bad_arguments_of_column_sums(error, x):
    with pytest.raises(error, match="`x`"):
        column_sums(x)
