"""Operands of the int8 products, in shapes that fill vectors and in others."""

from __future__ import annotations

import torch

from .tensors import codes_of, rand

SHAPES = [  # rows, columns, outputs: multiples of nothing, and of everything
    (1, 1, 1), (2, 3, 5), (5, 4, 15), (6, 5, 16), (7, 31, 17), (12, 64, 64), (13, 65, 63), (24, 128, 65),
    (3, 130, 130), (50, 17, 129), (1, 1000, 3), (0, 5, 4), (4, 0, 5), (4, 5, 0), (0, 0, 0),
]  # fmt: skip
HEADS = (1, 2, 3, 4, 5, 8)  # divisors of a vector's 16 lanes, and others
WIDTHS = range(1, 131)


def operands(rows, columns, outputs):
    return (
        codes_of(rows, columns), rand(rows, seed=1).abs(), codes_of(outputs, columns, seed=2),
        rand(outputs, seed=3).abs(), rand(outputs, seed=4),
    )  # fmt: skip


def every_width():
    """(heads, width) for all widths up to 70, each with some numbers of heads and those of whole vectors with all."""
    for width in range(1, 71):
        for heads in HEADS if width % 32 == 0 else (HEADS[width % 6], HEADS[(width + 2) % 6]):
            yield heads, width


def projection(rows, columns, outputs, heads, terms=2):
    *product, _ = operands(rows, columns, outputs)
    return [*product, rand(terms, outputs, seed=5), heads]


def factor_of(columns):
    """Of both signs, of many sizes, and zero for one column."""
    factor = rand(columns, seed=9) * torch.logspace(-3, 3, max(columns, 1))[:columns]
    factor[columns // 2 :][:1] = 0.0
    return factor


def factors(columns):
    return (None, factor_of(columns))
