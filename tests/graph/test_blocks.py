"""Blocks of a mini-batch: prefixes of one CSR, found by the number of rows."""

from __future__ import annotations

import copy

import pytest
import torch

from gossamer import Blocks, Graph
from gossamer.graph.graph import Block

ROWPTR = torch.tensor([0, 2, 3, 5, 6])  # two seeds, two nodes of the first hop, three of the second
COL = torch.tensor([2, 3, 2, 4, 0, 6], dtype=torch.int32)


def test_every_block_is_a_prefix():
    blocks = Blocks(ROWPTR, COL, [7, 4, 2])
    assert len(blocks) == 2 and repr(blocks) == "Blocks(7 -> 4 -> 2 nodes, 6 edges)"
    outer, inner = blocks
    assert (outer.num_src, outer.num_dst, outer.num_edges) == (7, 4, 6)
    assert (inner.num_src, inner.num_dst, inner.num_edges) == (4, 2, 3)
    assert blocks[0] is outer and blocks[-1] is inner
    assert inner.col.data_ptr() == COL.data_ptr()  # nothing is copied
    with pytest.raises(IndexError):
        blocks[2]


def test_weights_follow():
    inner = Blocks(ROWPTR, COL, (7, 4, 2), torch.arange(6.0))[1]
    assert inner.value.tolist() == [0, 1, 2]


def test_a_layer_finds_its_block():
    blocks = Blocks(ROWPTR, COL, [7, 4, 2])
    assert blocks.of_rows(7) is blocks[0] and blocks.of_rows(4) is blocks[1]
    with pytest.raises(ValueError, match=r"`x` must have as many rows as .*\(7, 4\) \(got 2\); pass the features"):
        blocks.of_rows(2)


@pytest.mark.parametrize("sizes", [[7], [4, 4, 2], [2, 4], []])
def test_sizes_fall(sizes):
    with pytest.raises(ValueError, match=r"`sizes` must fall"):
        Blocks(ROWPTR, COL, sizes)


def test_other_bad_input():
    with pytest.raises(ValueError, match=r"`rowptr` must have 6 entries.*got 5"):
        Blocks(ROWPTR, COL, [7, 5, 2])
    with pytest.raises(IndexError, match="`col` must hold ids from 0 to 4"):
        Blocks(ROWPTR, COL, [5, 4, 2])


def test_an_inner_layer_that_reaches_beyond_its_sources():
    blocks = Blocks(ROWPTR, COL, [7, 4, 3])  # node 2 has an edge from node 4
    with pytest.raises(IndexError, match="`col` must hold ids from 0 to 3"):
        blocks[1]


def test_blocks_are_marked():
    """Their destinations are the first sources, also after weights were added and in a copy."""
    block = Blocks(ROWPTR, COL, [7, 4, 2])[0]
    for graph in (block, block.with_value(torch.rand(6)), copy.deepcopy(block)):
        assert graph.block == Block()
    assert block.t().block is None
    with pytest.raises(ValueError, match=r"destinations are the first sources.*4 destinations and 3 sources"):
        Graph(torch.tensor([0, 0, 0, 0, 1]), torch.tensor([2], dtype=torch.int32), 3, block=Block())
