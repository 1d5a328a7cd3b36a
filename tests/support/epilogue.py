"""Arguments of the ops that run norm, activation and dropout and save few bits of them for backward."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gossamer.codecs import optimal_bins
from gossamer.ops import save_epilogue
from gossamer.ops.norm_act import Epilogue, Over
from gossamer.ops.save_epilogue import Packing

from .norm_act import SLOPES, inputs

SHAPES = ((1, 1), (3, 7), (257, 17), (300, 64), (513, 40), (65, 130))
PLAIN = (0, 1, True, None, None, 4)


def settings(over, act, p=0.0, eps=1e-5):
    """over, eps, act, slope, p, seed."""
    return int(over), eps, act, SLOPES[act], p, 7


def codec(bits=2, block=256, noise=11, bf16_meta=True, levels=None, slope_bits=4):
    """The arguments of save_epilogue between seed and products, in its order."""
    return bits, block, bf16_meta, levels, noise, slope_bits


def optimal(bits, block):
    return torch.tensor(optimal_bins.levels(bits, block))


def cases(over):
    """Inputs, settings and codec: everything goes round as shapes do."""
    for turn, (rows, columns) in enumerate(SHAPES * 5):
        if rows == 1 and over == Over.COLUMNS:
            continue
        args = inputs(rows, columns, over, affine=turn % 4 != 0)
        bits, block = (1, 2, 4, 8)[turn % 4], (256, 100, 7, 10**6)[turn // 2 % 4]
        levels = optimal(bits, block) if 1 < bits < 8 and block > 7 and turn % 3 == 0 else None
        chosen = codec(bits, block, (11, None)[turn // 3 % 2], turn % 5 > 0, levels, (4, 8, 2)[turn % 3])
        yield args, settings(over, turn % 5, (0.0, 0.5, 1.0)[turn // 5 % 3]), chosen


def keep(args, how, chosen):
    """The result, what was saved of it, the variance that was used, and whether the result itself was saved."""
    x, *norm = args
    epilogue, packing = Epilogue(*norm, *how), Packing(*chosen)
    made = save_epilogue(x, epilogue, packing, [], [])
    (out,), saved = made.outs, made.packed.saved(x.shape, epilogue, packing)
    return out, saved, epilogue.using(made.mean, made.var).var, epilogue.over == Over.NOTHING


class Settings(NamedTuple):
    """The numbers of an epilogue, without its tensors."""

    over: int
    eps: float
    act: int
    slope: float
    p: float
    seed: int

    def on(self, weight=None, bias=None, mean=None, var=None):
        """The epilogue with these tensors."""
        return Epilogue(weight, bias, mean, var, *self)
