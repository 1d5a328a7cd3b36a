"""The state of a lightened model: one object per module, one per model, both gone with `restore_`.

    module._gossamer          LayerState: its part of the recipe, its name, the engine that computes it
    module._gossamer.model    ModelState: step and epoch, what is drawn once per forward, the layers by name

`ModelState.state()` is plain values that JSON keeps exactly; a checkpoint holds it, and `restore` puts it back.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from .plain import LARGEST, whole

ATTRIBUTE = "_gossamer"
"""Where `lighten_` puts a module's state."""
MADE = "_gossamer_made"
"""What marks the subclass that it generates for a class of a user's."""


@dataclass(eq=False)
class ModelState:
    """What the layers of one lightened model share."""

    recipe: Any
    step: int = 0
    """Optimizer steps since the model was lightened; counted by `gs.train`."""
    epoch: int = 0
    epochs: int | None = None
    """How many there will be; None in a loop of one's own."""
    backward: Any = None
    """What the policies of backward share, if they remember something."""
    seed: int = 0
    """Of what is drawn anew in every forward by a hash; part of a checkpoint."""
    drawn: dict[str, Any] = field(default_factory=dict)
    """What is known of the batch that a forward runs on, for all layers."""
    layers: dict[str, LayerState] = field(default_factory=dict)
    gained_nothing: dict[tuple[Any, ...], tuple[int, ...]] = field(default_factory=dict)
    """By kind of call: up to which sizes of its input the model's forward took no path of ours (forward/as_pyg.py)."""
    replaced_nothing: dict[tuple[Any, ...], tuple[int, ...]] = field(default_factory=dict)
    """The same for calls in which a user's own forward called no function that ours replace."""
    classes: list[tuple[weakref.ref[nn.Module], type[nn.Module], Any]] | None = None
    """The model's lightened modules, their classes and those they had, once these are exchanged for a call."""
    ranks: Any = None
    """The processes that hold the parts of the graph that the model runs on; None for a whole graph."""
    agreed: bool = False
    """Whether all these ranks have the same recipe."""

    def __getstate__(self) -> dict[str, Any]:
        """A copy, or a model that was saved, finds its own modules."""
        return self.__dict__ | {"classes": None}

    def note_graph(self, graph: Any) -> None:
        """Let norms know whether their rows are a part of those that statistics are taken over."""
        if graph.halo is not None and self.recipe.training is not None:
            raise ValueError(
                "`training` must be None in a recipe for a part of a graph, as quantisers would learn other ranges on "
                f"each rank (got {self.recipe.training!r}); train on one machine, or calibrate afterwards: gs.calibrate"
            )
        self.ranks = None if graph.halo is None or graph.halo.ranks.size == 1 else graph.halo.ranks
        if self.ranks is not None and not self.agreed:
            if getattr(self.recipe.compute, "auto", False):
                raise ValueError(
                    "`compute` must not choose its precision by itself on parts of a graph, as ranks could choose "
                    f"differently (got {self.recipe.compute!r}); use gs.Int8()"
                )
            self.ranks.agree("recipe", repr(self.recipe))
            self.agreed = True

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        layers = {name: found for name, layer in self.layers.items() if (found := layer.state())}
        shared = {} if self.backward is None else {"backward": self.backward.state()}
        return {"step": self.step, "epoch": self.epoch, "seed": self.seed, "layers": layers} | shared

    def restore(self, found: Mapping[str, Any]) -> None:
        """What `state` returned, back in place; layers that it does not name begin anew."""
        self.step, self.epoch = whole(found["step"]), whole(found["epoch"])
        self.seed = whole(found.get("seed", self.seed), -LARGEST - 1)
        for name, layer in self.layers.items():
            layer.restore(found["layers"].get(name, {}))
        if self.backward is not None:
            policies = {name: layer.policy for name, layer in self.layers.items()}
            self.backward.restore(found.get("backward"), policies)


@dataclass(eq=False)
class LayerState:
    """What one lightened module has been told, and what it remembers."""

    recipe: Any
    """The recipe, with float32 compute where the module is an exception."""
    name: str
    model: ModelState
    engine: Any
    """How the module computes: the recipe, lowered (engine.lower)."""
    policy: Any
    """What backward multiplies of the module's adjacency; one that remembers something is the module's own object."""
    messages: Any = None
    """How rows travel between machines."""
    precision: Any = None
    """Measures rounding in the first steps, if the recipe leaves the precision to be found; a convolution shares it
    with all it holds."""

    def state(self) -> dict[str, Any]:
        return {} if self.precision is None else {"precision": self.precision.state()}

    def restore(self, found: Mapping[str, Any]) -> None:
        if self.precision is not None:
            self.precision.restore(found.get("precision", {}))


def model_state_of(model: nn.Module) -> ModelState | None:
    """The state of a lightened model, which each of its lightened modules holds; None if it is none."""
    return next((state.model for module in model.modules() if (state := state_of(module)) is not None), None)


def state_of(module: Any) -> LayerState | None:
    """The state of a lightened module; None if it is none."""
    return module.__dict__.get(ATTRIBUTE) if isinstance(module, nn.Module) else None
