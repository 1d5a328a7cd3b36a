"""Activations by name, and their derivatives: what fused kernels and their references agree on.

relu         z if z > 0 else 0         NaN passes, so that a divergence stays visible
leaky_relu   z if z > 0 else slope z
elu          z if z > 0 else slope (e^z - 1)
gelu         z Phi(z), Phi the normal distribution function
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

ACTIVATIONS = ("identity", "relu", "leaky_relu", "elu", "gelu")
"""The position is the number that kernels know (csrc/activation-inl.h)."""


def check_activation(act: int) -> None:
    if not 0 <= act < len(ACTIVATIONS):
        raise ValueError(f"`act` must be the number of one of {ACTIVATIONS} (got {act})")


def check_slope(slope: float) -> None:
    if not math.isfinite(slope):
        raise ValueError(f"`slope` must be a finite number (got {slope})")


def activate(z: Tensor, act: int, slope: float) -> Tensor:
    name = ACTIVATIONS[act]
    if name == "relu":
        return torch.where((z > 0) | z.isnan(), z, 0.0)
    if name == "leaky_relu":
        return torch.where(z > 0, z, z * slope)
    if name == "elu":
        return torch.where(z > 0, z, torch.expm1(z.clamp(max=0)) * slope)
    return functional.gelu(z) if name == "gelu" else z


def derivative(z: Tensor, act: int, slope: float) -> Tensor:
    name, one = ACTIVATIONS[act], torch.ones_like(z)
    if name == "relu":
        return torch.where((z > 0) | z.isnan(), one, 0.0)
    if name == "leaky_relu":
        return torch.where(z > 0, one, slope)
    if name == "elu":
        return torch.where(z > 0, one, torch.exp(z.clamp(max=0)) * slope)
    if name == "gelu":
        density = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        return torch.special.ndtr(z) + z * density
    return one
