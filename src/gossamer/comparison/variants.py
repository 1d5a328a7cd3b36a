"""The variants of a comparison: plain PyG in its usual forms, each at its best settings, and our recipes.

pyg-edge-index   gather and scatter over `edge_index`; GCN normalises once (cached=True)
                 in sampled batches PyG's ready models trim it layer by layer
pyg-csr          a torch.sparse CSR adjacency, which PyG multiplies without messages; GCN's is normalised beforehand
<recipe>         the same model after `gs.lighten_(model, recipe)`
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..recipe import Recipe, recipe_of, recipes

if TYPE_CHECKING:
    from .settings import Settings

EDGE_INDEX, CSR = "pyg-edge-index", "pyg-csr"
BASELINES = {"edge-index": (EDGE_INDEX, "PyG edge_index"), "csr": (CSR, "PyG CSR")}


@dataclass(frozen=True)
class Variant:
    """A baseline has no recipe."""

    name: str
    label: str
    recipe: Recipe | None = None


class UnknownBaseline(ValueError):
    """No baseline has this name."""


def variants_of(recipe_list: Sequence[Recipe | str], baseline_list: Sequence[str]) -> list[Variant]:
    """Baselines first. Raises for unknown names, and if both lists are empty."""
    found = [_baseline(name) for name in baseline_list] + [_recipe(recipe) for recipe in recipe_list]
    if not found:
        raise ValueError("`recipes` and `baselines` must not both be empty: there is nothing to compare")
    return list(dict.fromkeys(found))


def why_not(variant: Variant, settings: Settings, task: str) -> str | None:
    """Why a variant makes no sense for this model and task; None if it does."""
    if variant.name != CSR:
        return None
    if task.startswith("graph"):
        return "PyG joins small graphs to batches by their edge_index, so there is no CSR adjacency to prepare"
    if settings.fanouts is not None:
        return "PyG samples neighbours as edge_index, so there is no CSR adjacency to prepare"
    if settings.model == "gat":
        return "PyG's GATConv turns a CSR adjacency back into edges at every call: as slow and as large as edge_index"
    return None


def prepare(variant: Variant, model: nn.Module, one_graph: bool) -> None:
    """Give a baseline's model its best settings: a single graph is normalised only once."""
    from torch_geometric.nn import GCNConv

    for module in model.modules():
        if isinstance(module, GCNConv) and one_graph and variant.recipe is None:
            module.cached = variant.name == EDGE_INDEX
            module.normalize = variant.name != CSR


def adjacency_of(variant: Variant, model: str, data: Any) -> Tensor | None:
    """What the model gets instead of `data.edge_index`, if anything."""
    if variant.name != CSR or isinstance(data, list):
        return None
    edge_index, value = data.edge_index, torch.ones(data.edge_index.size(1))
    if model == "gcn":
        from torch_geometric.nn.conv.gcn_conv import gcn_norm

        edge_index, value = gcn_norm(edge_index, None, data.num_nodes)
    return csr(edge_index, value, data.num_nodes)


def csr(edge_index: Tensor, value: Tensor, num_nodes: int) -> Tensor:
    """A torch.sparse CSR matrix with destinations as rows. Repeated edges stay, as message passing counts them all."""
    source, destination = edge_index
    order = (destination * num_nodes + source).argsort()
    rowptr = torch.zeros(num_nodes + 1, dtype=torch.int64)
    rowptr[1:] = torch.bincount(destination, minlength=num_nodes).cumsum(0)
    size = (num_nodes, num_nodes)
    return torch.sparse_csr_tensor(rowptr, source[order], value[order], size, check_invariants=False)


def _baseline(name: str) -> Variant:
    if name not in BASELINES:
        near = difflib.get_close_matches(str(name).lower().removeprefix("pyg-"), BASELINES, n=1, cutoff=0.3)
        nearest = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownBaseline(f"there is no baseline {name!r}.{nearest} Baselines: {', '.join(BASELINES)}.")
    return Variant(*BASELINES[name])


def _recipe(recipe: Recipe | str) -> Variant:
    found = recipe_of(recipe)
    names = [recipe] if isinstance(recipe, str) else [name for name, known in recipes.items() if known == found]
    name = names[0] if names else repr(found)
    return Variant(name, f"Gossamer {name}", found)
