"""What a variant costs, as bars from zero. Always linear: the length of a bar is the claim."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .frame import canvas, figure
from .labels import short
from .markup import Markup, tag
from .read import Comparison, Form, Variant
from .units import UNKNOWN, seconds, size

WIDTH, LONGEST_BAR, ROW = 340.0, 256.0, 44.0


def cost_bars(told: Comparison) -> list[Markup]:
    """Time, peak memory and bytes saved for backward, one chart each."""
    return [
        _bars(told.variants, "Time per epoch", [v.seconds for v in told.variants], seconds),
        _bars(told.variants, "Peak memory", [v.peak_bytes for v in told.variants], size),
        _bars(told.variants, "Saved for backward", [v.kept_bytes for v in told.variants], size),
    ]


def form_bars(forms: Sequence[Form]) -> list[Markup]:
    """Latency and file size, one chart each."""
    return [
        _bars(forms, "Time of a call", [form.seconds for form in forms], seconds),
        _bars(forms, "File size", [form.file_bytes for form in forms], size),
    ]


def _bars(
    told: Sequence[Variant | Form], caption: str, costs: Sequence[float], told_as: Callable[[float], str]
) -> Markup:
    most = max((value for value in costs if not math.isnan(value)), default=0.0)
    rows = []
    for index, (variant, value) in enumerate(zip(told, costs, strict=True)):
        share = value / most if most > 0 and not math.isnan(value) else 0.0
        text = told_as(value) if not math.isnan(value) else "failed" if variant.error is not None else UNKNOWN
        rows.append(_row(variant, index * ROW, share, text))
    return figure(caption, canvas(WIDTH, max(1, len(rows)) * ROW, caption, *rows))


def _row(variant: Variant | Form, top: float, share: float, text: str) -> Markup:
    length = share * LONGEST_BAR
    return tag(
        "g",
        tag("title", f"{variant.label}: {text}"),
        tag("text", short(variant.label, 44), x=0.0, y=top + 14, class_="name"),
        tag("rect", x=0.0, y=top + 20, width=length, height=16.0, rx=2.0, class_="bar"),
        tag("text", text, x=length + 7 if length else 0.0, y=top + 33, class_="value"),
        class_=variant.look,
    )
