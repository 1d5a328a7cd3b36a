"""The forms in which a trained model is evaluated: PyG's, ours in float32, and integers.

pyg-edge-index, pyg-csr      plain PyG as in training, each at its best settings (variants.py)
pyg-compiled                 torch.compile of the former
float32                      the same weights after `gs.lighten_(model, "float32")`
onnx-int8                    ONNX Runtime, weights and products in eight bits by its dynamic quantisation
int8-calibrated              the integer engine, with ranges of the float32 weights by `gs.calibrate`
int8-, int4-degree-quant     the integer engine, of models that were trained for it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

from .settings import Settings
from .variants import CSR, EDGE_INDEX, Variant, why_not

COMPILED, LIGHTENED, ONNX = "pyg-compiled", "float32", "onnx-int8"
ONNX_PACKAGES = ("onnx", "onnxruntime", "onnxscript")


@dataclass(frozen=True)
class Form:
    """`trained`: the recipe by which its weights were trained."""

    name: str
    label: str
    ours: bool = False
    trained: str = "float32"
    is_engine: bool = False

    @property
    def is_written(self) -> bool:
        """Whether the model is a file of its own, in place of the float32 weights."""
        return self.is_engine or self.name == ONNX


FORMS = (
    Form(EDGE_INDEX, "PyG edge_index"),
    Form(CSR, "PyG CSR"),
    Form(COMPILED, "PyG compiled"),
    Form(ONNX, "ONNX Runtime int8"),
    Form(LIGHTENED, "Gossamer float32", ours=True),
    Form("int8-calibrated", "engine int8, calibrated", ours=True, is_engine=True),
    Form("int8-degree-quant", "engine int8, degree-quant", ours=True, trained="degree-quant-int8", is_engine=True),
    Form("int4-degree-quant", "engine int4, degree-quant", ours=True, trained="degree-quant-int4", is_engine=True),
)


def left_out(settings: Settings, task: str) -> dict[str, str]:
    """The forms that make no sense here, or cannot run here, and why."""
    whole = replace(settings, fanouts=None)  # all neighbours take part, however the model was trained
    reasons = {form.name: why_not(Variant(form.name, form.label), whole, task) for form in FORMS}
    missing = _missing(ONNX_PACKAGES)
    if missing:
        reasons[ONNX] = f"it needs {', '.join(missing)}: pip install 'gossamer-gnn[onnx]'"
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _missing(packages: Sequence[str]) -> list[str]:
    return [name for name in packages if find_spec(name) is None]
