"""The headline says what the numbers say; the table fits; figures are written as people read them."""

from __future__ import annotations

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gossamer import report
from gossamer.report.headline import findings
from gossamer.report.read import read
from gossamer.report.units import Metric, byte_unit, digits, number, rate, seconds, size, time_unit, times


def against(maker, score=0.73, std=0.002, faster=1.0, smaller=1.0, **settings):
    made = maker(epochs=2, **settings).add("pyg-csr", "PyG CSR", 0.73, 0.002, 3.0, 2e9, 1e9)
    return made.add("float32", "float32", score, std, 3.0 / faster, 2e9 / smaller, 1e9, recipe="Recipe()").done()


@pytest.mark.parametrize(
    ("faster", "smaller", "said"),
    [
        (3.4, 2.1, "float32 is 3.4× faster than PyG CSR and needs 2.1× less memory, at"),
        (0.5, 0.25, "float32 is 2.0× slower than PyG CSR and needs 4.0× more memory, at"),
        (3.0, 0.5, "float32 is 3.0× faster than PyG CSR but needs 2.0× more memory, at"),
        (0.5, 3.0, "float32 is 2.0× slower than PyG CSR but needs 3.0× less memory, at"),
        (1.01, 0.99, "float32 is as fast as PyG CSR and needs as much memory, at"),
        (13.2, 1.0, "float32 is 13× faster than PyG CSR and needs as much memory, at"),
    ],
)
def test_speed_and_memory(maker, faster, smaller, said):
    assert report.headline(against(maker, faster=faster, smaller=smaller)).startswith(said)


@pytest.mark.parametrize(
    ("score", "settings", "said"),
    [
        (0.73, {}, "at the same accuracy (73.0 ± 0.2 against 73.0 ± 0.2)"),
        (0.729, {}, "at the same accuracy within noise (72.9 ± 0.2 against 73.0 ± 0.2)"),
        (0.72, {}, "but with worse accuracy (72.0 ± 0.2 against 73.0 ± 0.2)"),
        (0.74, {}, "with better accuracy (74.0 ± 0.2 against 73.0 ± 0.2)"),
        (0.74, {"metric": "mae", "higher": False}, "but with worse MAE (0.7400 ± 0.0020 against 0.7300 ± 0.0020)"),
        (0.72, {"metric": "mae", "higher": False}, "with better MAE (0.7200 ± 0.0020 against 0.7300 ± 0.0020)"),
        (0.729, {"seeds": 1}, "but with worse accuracy (72.9 ± 0.2 against 73.0 ± 0.2, one seed)"),
        (0.72, {"metric": "roc_auc"}, "but with worse ROC AUC (72.0 ± 0.2 against 73.0 ± 0.2)"),
        (0.74, {"metric": "micro_f1"}, "with better micro-F1 (74.0 ± 0.2 against 73.0 ± 0.2)"),
    ],
)
def test_scores(maker, score, settings, said):
    assert report.headline(against(maker, score, **settings)).endswith(f", {said}")


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (0.05e9, "less memory, with 20× fewer bytes saved for backward, at"),
        (8e9, "less memory, with 8.0× more bytes saved for backward, at"),
        (0.5e9, "less memory, at"),  # much the same story as the peak
        (0, "less memory, at"),
    ],
)
def test_kept_bytes(maker, kept, said):
    made = maker(epochs=2).add("pyg-csr", "PyG CSR", 0.73, 0.002, 3.0, 2e9, 1e9)
    made.add("few", "few", 0.73, 0.002, 1.0, 1e9, kept, recipe="Recipe()")
    assert said in report.headline(made.done())


def test_the_fastest_recipe_that_loses_nothing_leads(maker):
    made = maker(epochs=2).add("pyg-csr", "PyG CSR", 0.73, 0.002, 3.0, 2e9, 1e9)
    made.add("slow", "slow", 0.73, 0.002, 2.0, 1e9, 1e9, recipe="Recipe()")
    made.add("fast", "fast", 0.73, 0.002, 1.0, 1e9, 1e9, recipe="Recipe()")
    made.add("worse", "worse", 0.5, 0.002, 0.1, 1e9, 1e9, recipe="Recipe()")
    assert [sentence.split()[0] for sentence in findings(read(made.done()))] == ["fast", "slow", "worse"]


def test_a_failed_baseline_is_not_compared_with(maker):
    made = (
        maker(epochs=2).fail("pyg-csr", "PyG CSR", "out of memory").add("pyg-edge-index", "edges", 0.73, 0, 9.0, 4e9, 1)
    )
    made.add("float32", "float32", 0.73, 0, 3.0, 2e9, 1, recipe="Recipe()")
    assert report.headline(made.done()).startswith("float32 is 3.0× faster than edges and needs 2.0× less memory")


def test_without_a_baseline_or_a_recipe_the_figures_stand_alone(maker):
    alone = maker(epochs=2).add("float32", "float32", 0.729, 0.002, 0.9, 1.1e9, 1, recipe="Recipe()")
    said = "float32: accuracy 72.9 ± 0.2 %, 0.900 s per epoch, 1.10 GB of memory"
    assert report.headline(alone.done()) == said
    assert report.headline(alone.fail("pyg-csr", "PyG CSR", "out of memory").done()) == said
    only = maker(epochs=2).add("pyg-csr", "PyG CSR", 0.73, 0, 3.0, 2e9, 1)
    assert report.headline(only.fail("float32", "float32", "no", "Recipe()").done()).startswith(
        "PyG CSR: accuracy 73.0 %"
    )


def test_a_failure_is_one_line(maker):
    said = report.headline(maker().fail("a", "a", "first\n  second " + "x" * 1000, "Recipe()").done())
    assert said.startswith("a failed: first second xxx") and "\n" not in said and len(said) < 320


def printed(comparison, width=100, table=report.table):
    console = Console(file=io.StringIO(), width=width)
    console.print(table(comparison))
    return console.file.getvalue()


def test_the_table_fits_and_tells_all(realistic):
    text = printed(realistic)
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    for cell in ("PyG edge_index", "73.0 ± 0.3", "12.1 s", "0.900 s", "3.7×", "13×", "6.50 GB", "700 MB", "failed"):
        assert cell in text
    assert "tango failed: RuntimeError: out of memory" in text
    assert len(report.table(realistic).rows) == 5


def test_long_labels_wrap_and_markup_is_text(realistic):
    realistic["variants"][0]["label"] = "a very long label with [bold]markup[/bold] and \x1b[31m colours " * 3
    text = printed(realistic)
    assert max(map(len, text.splitlines())) <= 100
    assert "[bold]" in text.replace("\n", "") and "\x1b" not in text
    assert "70.0 MB" in text


def test_the_inference_table_fits_and_tells_all(with_inference):
    text = printed(with_inference, table=report.inference_table)
    assert max(map(len, text.splitlines())) <= 100 and "…" not in text
    assert text.startswith("Inference: one call over 169,343 nodes")
    row = next(line for line in text.splitlines() if "engine int8, calibrated" in line)
    assert " ".join(row.split()) == "engine int8, calibrated 72.9 0.120 s 1.41 M 51× 13× 90.0 MB 260 kB"
    assert "PyG compiled failed: InvalidCxxCompiler: no working C++ compiler found" in text


def test_a_comparison_without_an_inference_table(realistic):
    assert report.inference_table(realistic) is None is report.inference_table(realistic | {"inference": None})


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "0.500"), (999, "999"), (1234, "1.23 k"), (1.41e6, "1.41 M"), (2e12, "2,000 G")]
)
def test_rates(value, text):
    assert rate(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.9, "0.900 s"),
        (12.14, "12.1 s"),
        (0.0335, "33.5 ms"),
        (1e-6, "0.00100 ms"),
        (900, "15.0 min"),
        (7200, "2.00 h"),
    ],
)
def test_seconds(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (999, "999 B"), (6.5e9, "6.50 GB"), (7e7, "70.0 MB"), (2e15, "2,000 TB")]
)
def test_sizes(value, text):
    assert size(value) == text


def test_ratios_and_what_is_unknown():
    assert [times(r) for r in (3.44, 0.287, 13.4, 123.4, 9.97)] == ["3.4×", "0.29×", "13×", "123×", "10×"]
    assert [told(math.nan) for told in (times, seconds, size, digits, Metric("accuracy").format)] == ["–"] * 5
    assert all(math.isnan(number(wrong)) for wrong in (None, "1", True, math.inf, math.nan, [1]))
    assert number(3) == 3.0


def test_scores_are_written_by_their_kind():
    assert Metric("accuracy").format(0.7291, 0.0021) == "72.9 ± 0.2"
    assert Metric("micro_f1").format(0.6512, 0.0034) == "65.1 ± 0.3"
    assert Metric("mae", False).format(0.23123, 0.0041) == "0.2312 ± 0.0041"
    assert Metric("mae", False).format(12.3, 0.0) == "12.30"
    assert Metric("mae", False).format(0.0) == "0.000"


@given(st.floats(1e-9, 1e15), st.integers(2, 5))
def test_digits_are_close_and_without_exponent(value, significant):
    text = digits(value, significant)
    assert "e" not in text
    assert float(text.replace(",", "")) == pytest.approx(value, rel=10.0 ** (1 - significant))


@given(st.floats(0, 1e16))
def test_units_leave_readable_numbers(value):
    assert value / time_unit(value).size >= 0.1 or value < 1e-4 or time_unit(value).name == "s"
    assert 1 <= value / byte_unit(value).size < 1000 or value < 1 or value >= 1e15
