"""Codes of a batch, back to features: the transform of PyG's own loaders."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from ..codecs import Codes
from .file import Header
from .layout import TABLE, decode_rows


@final
class Decode:
    """Replaces `batch[name]`, rows of `FeatureStore.codes`, by the features they stand for. Can be sent to workers."""

    def __init__(self, header: Header, tables: tuple[Tensor, ...], name: str, dtype: torch.dtype) -> None:
        self.header, self.tables, self.name, self.dtype = header, tables, name, dtype

    def __call__(self, batch: Any) -> Any:
        batch[self.name] = self.decode(batch[self.name])
        return batch

    def decode(self, codes: Tensor) -> Tensor:
        """uint8 [count, bytes] -> [count, features]."""
        row_bytes = sum(part.row_bytes for part in self.header.layout)
        if codes.dtype != torch.uint8 or codes.dim() != 2 or codes.size(1) != row_bytes:
            raise ValueError(
                f"`{self.name}` must be rows of `store.codes`, uint8 [count, {row_bytes}] (got {codes.dtype} "
                f"{tuple(codes.shape)}); set data.{self.name} = store.codes, and decode a batch once"
            )
        tensors, tables, at = [], iter(self.tables), 0
        for part in self.header.layout:
            if part.of == TABLE:
                tensors.append(next(tables))
                continue
            own = codes[:, at : at + part.row_bytes].contiguous().view(-1).view(part.dtype)
            tensors.append(own.view(part.shape_of(len(codes))))
            at += part.row_bytes
        whole = Codes(tuple(tensors), torch.Size((len(codes), self.header.num_features)), self.dtype)
        return decode_rows(self.header.codec, whole, torch.arange(len(codes)), self.dtype)

    def __repr__(self) -> str:
        return f"Decode({self.name!r}, {self.header.codec!r})"
