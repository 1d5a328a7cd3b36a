"""The published plan of sites as a program: every site becomes codes, and floats again behind it.

The floats between two sites are those of training, computed in the same order. Products and sums are of integers; where
edges have factors, each message is made codes before it is summed (the step `Messages`). GIN's own row and its sum meet
as floats. It is slow, and there to show what a model computes that was trained as published. GAT has no such form.
"""

from __future__ import annotations

import dataclasses

import torch
from torch_geometric import nn as pyg

from ..engine.fake_quant.engine import Sites
from ..engine.fake_quant.quantiser import Quantiser
from ..inference.program import Convert, FloatStep, Messages, Quantise, Result, Step
from .capture import Node
from .errors import CannotCapture
from .lowering import (
    FUSED,
    Codes,
    Floats,
    Lower,
    Lowering,
    Open,
    Plan,
    Value,
    engine_and_sites,
    joined_products,
    largest,
    parts_of,
    plan_of,
    read,
    summed,
)


def rounded(to: Lowering, value: Value, quantiser: Quantiser, where: str) -> Floats:
    """The value after a site, as floats."""
    return to.floats(opened(to.codes(value, quantiser, where)))


def opened(codes: Codes) -> Open:
    """Codes as a value to go on with."""

    def make(out: str, result: Result) -> Step:
        return Convert(out, codes.register, result)

    return Open(codes.columns, torch.tensor([codes.scale], dtype=torch.float64), make)


def _linear(to: Lowering, node: Node) -> Value:
    lin, (source,) = node.module, node.inputs
    _, sites = engine_and_sites(lin)
    if sites is None:
        return FUSED["linear"](to, node)
    if source.kind == "gin":
        read(to, source.inputs[0], lin.weight.size(1))  # a sum has the columns of what it sums
    x = to.codes(read(to, source, lin.weight.size(1)), sites["input"], f"{node.name}'s input")
    product = to.product(x, lin.weight, node.name, None, lin.bias)
    return rounded(to, product, sites["output"], f"{node.name}'s output")


def _conv(to: Lowering, node: Node) -> Value:
    conv = node.module
    _, sites = engine_and_sites(conv)
    if sites is None:
        return FUSED["conv"](to, node)
    if isinstance(conv, pyg.GATConv):
        raise CannotCapture(
            f"{node.name or 'the model'} must have been trained with plan='fused' to be exported (got GATConv with "
            "plan='published', whose rounding of logits and messages has no integer form); train it with "
            "gs.DegreeQuant(bits=8) or gs.QAT(bits=8)"
        )
    to.convolutions += 1
    lin, root, bias = parts_of(node, conv)
    x = read(to, node.inputs[0], lin.weight.size(1))
    inner = to.codes(x, sites["input"], f"{node.name}'s input")
    if isinstance(conv, pyg.GCNConv):
        h = to.codes(to.product(inner, lin.weight, node.name, None, None), sites["features"], f"{node.name}'s features")
        out = opened(_sums(to, h, sites, node))
        if bias is not None:
            out.shifted(bias.detach().double())
        return rounded(to, to.floats(out), sites["update"], f"{node.name}'s result")
    rooted = None if root is None else to.product(inner, root.weight, f"{node.name}.root", None, root.bias)
    product = to.product(_sums(to, inner, sites, node), lin.weight, node.name, None, bias)
    both = product if rooted is None else joined_products(product, rooted)
    return rounded(to, both, sites["update"], f"{node.name}'s result")


def _sums(to: Lowering, x: Codes, sites: Sites, node: Node) -> Codes:
    """The rounded sum over the neighbours of rounded messages."""
    conv, plan, where = node.module, plan_of(node.module, node), f"{node.name}'s sum"
    if plan.norm or sites["norm"].is_ready:
        if plan.reduce == "max":
            raise CannotCapture(f"{node.name} takes maxima by weights of edges, which has no integer form{node.line}")
        return to.codes(_messages(to, x, sites, plan, node), sites["aggregate"], where)
    if isinstance(conv, pyg.GCNConv):  # without a norm its messages are rounded rows
        x = to.codes(to.floats(opened(x)), sites["message"], f"{node.name}'s messages")
    return to.codes(_summed(to, x, plan), sites["aggregate"], where)


def _summed(to: Lowering, x: Codes, plan: Plan) -> Floats:
    """The sum over the neighbours: of whole numbers, then times their step."""
    if plan.reduce == "max":
        return to.floats(opened(largest(to, x)))
    return _times(to, to.floats(summed(dataclasses.replace(x, scale=1.0), plan)), x.scale)


def _times(to: Lowering, x: Floats, factor: float) -> Floats:
    """Floats times a number."""
    out = to.new()
    to.append(Quantise(out, x.register, Result(to.factors(torch.tensor([factor])))))
    return Floats(out, x.columns)


def _messages(to: Lowering, x: Codes, sites: Sites, plan: Plan, node: Node) -> Floats:
    """The sum of messages that are rounded one by one."""
    norm, norm_scale = _code_of(to, sites["norm"], f"{node.name}'s norms")
    message, message_scale = _code_of(to, sites["message"], f"{node.name}'s messages")
    scale, edge_scale = (to.factors(torch.tensor([each])) for each in (x.scale, norm_scale))

    def make(out: str, result: Result) -> Step:
        return Messages(out, x.register, result, message, scale, norm, edge_scale, plan.norm)

    row = plan.dst if plan.dst == "mean" else ""
    return _times(to, to.floats(Open(x.columns, torch.ones(1, dtype=torch.float64), make, None, row)), message_scale)


def _code_of(to: Lowering, quantiser: Quantiser, where: str) -> tuple[Result, float]:
    """How floats become codes at a site, and the step of these."""
    scale, zero = to.levels(quantiser, where)
    return Result(to.factors(torch.tensor([scale]).reciprocal()), quantiser.setting.bits, zero), scale


def _gin(to: Lowering, node: Node) -> Value:
    """(1 + eps) x_i plus the rounded sum."""
    _, sites = engine_and_sites(node.module)
    if sites is None:
        return FUSED["gin"](to, node)
    to.convolutions += 1
    if sites["norm"].is_ready:
        raise CannotCapture(
            f"{node.name} must sum over edges without weights to be exported (got weights){node.line}; train it so"
        )
    x = to.floats(to.value(node.inputs[0]))
    message = to.codes(x, sites["message"], f"{node.name}'s messages")
    sums = rounded(to, _summed(to, message, Plan()), sites["aggregate"], f"{node.name}'s sum")
    own, both = _times(to, x, 1.0 + float(node.module.eps.detach())), to.new()
    to.append(FloatStep(both, sums.register, "add", (own.register,)))
    return Floats(both, x.columns)


def _updated(to: Lowering, node: Node) -> Value:
    _, sites = engine_and_sites(node.module)
    value = to.value(node.inputs[0])
    return value if sites is None else rounded(to, value, sites["update"], f"{node.name}'s result")


PUBLISHED: dict[str, Lower] = {**FUSED, "linear": _linear, "conv": _conv, "gin": _gin, "updated": _updated}
