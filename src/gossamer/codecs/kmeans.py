"""k-means of a part of feature rows (BiFeat's vector quantisation): the codebook of one part.

    assign    euclidean: argmax_c x.c - |c|^2 / 2        cosine: argmax_c x.c / |c|
    update    c = mean of its rows
    stop      when the distortion has fallen by less than 1e-4 of itself, or after 25 iterations

Starts from k-means++ on a subsample. A centre that no row is nearest to takes the farthest row of the cell with the
largest distortion instead, so none is empty while there are other rows. Distortion, the sum of |x - c|^2 (cosine: of
|x| - x.c / |c|), never rises. Assignments and sums run in a fixed order (ops/encode_codes.py, ops/code_sums.py): the
same centres for the same seed, for any number of threads.

Written on our own ops, not on faiss, whose wheels bring an OpenMP runtime and a BLAS of their own beside torch's.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..ops.code_sums import code_sums
from ..ops.encode_codes import encode_product
from ..ops.gather_codes import id_bits
from ..ops.pack_ids import unpack_ids

LEAST_GAIN = 1e-4
MOST_ITERATIONS = 25
MOST_RESEEDS = 10  # iterations beyond, if cells are still empty
STARTED_FROM = 4  # rows of the subsample per centre


def kmeans(x: Tensor, count: int, metric: str, seed: int) -> tuple[Tensor, list[float]]:
    """At most `count` centres [k, columns] of the rows of x, none of them all zeros, and each iteration's distortion.

    Fewer than `count` only if x has fewer different rows (cosine: directions).
    """
    rng = torch.Generator().manual_seed(seed)
    centres = _plus_plus(x, count, metric, rng)
    distortions: list[float] = []
    for step in range(MOST_ITERATIONS + MOST_RESEEDS):
        ids, sums, sizes = _assign(x, centres, metric)
        distance = _distance(x, centres[ids], metric)
        of_cell = torch.bincount(ids, weights=distance, minlength=len(centres))
        distortions.append(float(of_cell.cumsum(0)[-1]))
        empty = sizes == 0
        open_places = count - len(centres) + int(empty.sum())
        fresh = _farthest(ids, distance, of_cell, open_places)
        gain = distortions[-2] - distortions[-1] if step else distortions[0]
        if not len(fresh) and (step >= MOST_ITERATIONS or gain <= LEAST_GAIN * distortions[max(step - 1, 0)]):
            break
        means = (sums / sizes.clamp(min=1).unsqueeze(1)).float()
        centres = torch.cat([means[~empty], x[fresh]])
    return centres, distortions


def search_tables(centres: Tensor, metric: str) -> tuple[Tensor, Tensor]:
    """What `encode_product` searches, [columns, k + 1] and [k + 1]; code 0, and centres that are zero, are left out."""
    wide = torch.nn.functional.pad(centres.double(), (0, 0, 1, 0))
    norm = torch.linalg.vector_norm(wide, dim=1)
    if metric == "cosine":
        wide, start = wide / norm.where(norm > 0, 1).unsqueeze(1), torch.zeros_like(norm)
    else:
        start = -norm.square() / 2
    return wide.t().float(), start.float().where(norm > 0, -torch.inf)


def _assign(x: Tensor, centres: Tensor, metric: str) -> tuple[Tensor, Tensor, Tensor]:
    """Each row's centre, and sums and sizes of the cells."""
    books, start = search_tables(centres, metric)
    packed, _ = encode_product(x, books, start.unsqueeze(0), x.new_ones(1), x.size(1))
    shape = len(centres) + 1, x.size(1)
    sums, sizes = x.new_zeros(1, *shape, dtype=torch.float64), x.new_zeros(1, shape[0], dtype=torch.int64)
    code_sums(sums, sizes, x, packed)
    ids = unpack_ids(packed, 1, id_bits(shape[0])).view(-1).long() - 1
    return ids.clamp(min=0), sums[0, 1:], sizes[0, 1:]


def _distance(x: Tensor, centre: Tensor, metric: str) -> Tensor:
    """Of each row from its centre, float64."""
    if metric == "euclidean":
        return (x - centre).double().square().sum(1)
    direction = centre.double() / torch.linalg.vector_norm(centre.double(), dim=1, keepdim=True).clamp(min=1e-300)
    along = (x.double() * direction).sum(1)
    return (torch.linalg.vector_norm(x.double(), dim=1) - along).clamp(min=0)


def _farthest(ids: Tensor, distance: Tensor, of_cell: Tensor, count: int) -> Tensor:
    """The farthest row of each of the `count` cells of largest distortion, of those that have any."""
    cells = of_cell.argsort(descending=True, stable=True)[:count]
    cells = cells[of_cell[cells] > _noise(distance)]
    if not len(cells):
        return cells
    largest = torch.zeros_like(of_cell).scatter_reduce(0, ids, distance, "amax")
    rows = torch.arange(len(ids), device=ids.device).where(distance == largest[ids], len(ids))
    first = torch.full_like(of_cell, len(ids), dtype=torch.int64).scatter_reduce(0, ids, rows, "amin")
    return first[cells]


def _noise(distance: Tensor) -> float:
    """Distortion that is rounding and no distance: none of a row that is its own centre exceeds it."""
    return 0.0 if distance.numel() == 0 else 1e-12 * float(distance.max())


def _plus_plus(x: Tensor, count: int, metric: str, rng: torch.Generator) -> Tensor:
    """Rows of a subsample, each drawn with a probability proportional to its squared distance from those before it."""
    if len(x) > STARTED_FROM * count:
        x = x[torch.randperm(len(x), generator=rng)[: STARTED_FROM * count]]
    points = (torch.nn.functional.normalize(x) if metric == "cosine" else x).cpu().numpy()
    draws = torch.rand(count, generator=rng, dtype=torch.float64).tolist()
    chosen = [int(draws[0] * len(x))]
    nearest = np.full(len(x), np.inf)
    for draw in draws[1:]:  # in numpy: thousands of steps, each too short to wake threads for
        apart = points - points[chosen[-1]]
        np.minimum(nearest, np.einsum("ij,ij->i", apart, apart), out=nearest)
        up_to = nearest.cumsum()
        if up_to[-1] <= 0:
            break
        chosen.append(min(int(np.searchsorted(up_to, draw * up_to[-1], side="right")), len(x) - 1))
    return x[torch.tensor(chosen, device=x.device)]
