"""A feature store as PyG's loaders know them: one attribute of one type of nodes. Imported when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from torch import Tensor
from torch_geometric.data import FeatureStore as PyG
from torch_geometric.data import TensorAttr

if TYPE_CHECKING:
    from .store import FeatureStore


@final
class PyGFeatureStore(PyG):
    """Read-only: rows are decoded when a loader asks for them."""

    def __init__(self, store: FeatureStore, group_name: str | None, attr_name: str) -> None:
        super().__init__()
        self.store, self.group_name, self.attr_name = store, group_name, attr_name

    def _get_tensor(self, attr: TensorAttr) -> Tensor | None:
        if not self._is_ours(attr):
            return None
        if attr.index is None:
            return self.store.decode()
        if isinstance(attr.index, int):
            return self.store[attr.index : attr.index + 1]
        return self.store[attr.index]

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        return tuple(self.store.shape) if self._is_ours(attr) else None

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        return [TensorAttr(self.group_name, self.attr_name)]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        raise TypeError("compressed features cannot be changed; compress the new ones with gs.compress")

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        raise TypeError("compressed features cannot be changed; make a store without them")

    def _is_ours(self, attr: TensorAttr) -> bool:
        return (attr.group_name, attr.attr_name) == (self.group_name, self.attr_name)

    def __len__(self) -> int:
        return 1

    def __repr__(self) -> str:
        return f"PyGFeatureStore({self.attr_name!r}: {self.store!r})"
