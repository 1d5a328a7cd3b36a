"""The page: whole, self-contained, escaped, complete, and written whatever is missing."""

from __future__ import annotations

import copy
import json
import math
import re
import shlex
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from gossamer import report
from gossamer.report.curves import points_of
from gossamer.report.markup import Markup, tag
from gossamer.report.page import page
from gossamer.report.read import read
from gossamer.report.small_print import command

VOID = {"meta", "br"}


class Outline(HTMLParser):
    """Fails on a tag that closes another one; collects attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text += data if self.stack[-1:] != ["style"] else ""


def pictures(text: str) -> list[ElementTree.Element]:
    whole = re.findall(r"<figcaption>.*?</figcaption>(<svg.*?)</figure>", text, flags=re.S)
    return [ElementTree.fromstring(svg) for svg in whole]


def coordinates(text: str) -> list[float]:
    numbers = []
    for svg in pictures(text):
        for node in svg.iter():
            numbers += [float(node.get(key)) for key in ("x", "y", "x1", "y1", "x2", "y2", "cx", "cy") if node.get(key)]
            numbers += [float(n) for n in re.findall(r"-?\d+\.?\d*|nan|inf", node.get("d", ""))]
    return numbers


def test_is_well_formed_and_complete(realistic):
    text = page(realistic)
    outline = Outline(text)
    assert text.startswith("<!DOCTYPE html>")
    for variant in realistic["variants"]:
        assert outline.text.count(variant["label"]) >= 4  # the table and three charts at least
    assert len(pictures(text)) == 3 + 2 + 4
    assert "out of memory" in outline.text
    for fact in ("arxiv-like", "169,343", "A Processor 9000", "avx512", "2.13.0", "2031-05-04", "Recipe()"):
        assert fact in outline.text


def test_needs_nothing_else(realistic):
    text = page(realistic)
    names = {name for name, _ in Outline(text).tags}
    assert not names & {"script", "link", "img", "iframe", "object", "image", "use"}
    assert not re.search(r"https?:|//|url\(|@import|@font-face", text)
    attributes = {key for _, attrs in Outline(text).tags for key in attrs}
    assert not attributes & {"src", "href", "xlink:href", "onload", "style"}


def test_has_a_dark_theme_a_narrow_and_a_printed_form(realistic):
    text = page(realistic)
    assert "prefers-color-scheme: dark" in text and "@media print" in text and "max-width: 760px" in text
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in Outline(text).tags


def hostile(value):
    """Every text replaced by one that would break out of an element, an attribute or a style."""
    if isinstance(value, dict):
        return {key: value[key] if key in ("format", "metric") else hostile(value[key]) for key in value}
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return '</title></style><script>alert("1")</script>\' &amp; \x1b[31m\x00\ud800' if isinstance(value, str) else value


def test_escapes_every_text(realistic, tmp_path):
    broken = hostile(realistic)
    for variant in broken["variants"]:
        for part in ("times_faster", "times_smaller_peak"):
            variant[part] = {f"<b>{name}</b>": ratio for name, ratio in variant[part].items()}
    report.write_page(broken, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert {name for name, _ in Outline(text).tags} == {name for name, _ in Outline(page(realistic)).tags}
    assert "<script" not in text and "<b>" not in text and "\x1b" not in text and "\x00" not in text
    assert 'alert("1")' in Outline(text).text  # told as it is, as text
    assert len(pictures(text)) == 9


@pytest.mark.parametrize("missing", [None, math.nan, math.inf, -math.inf, "absent"])
def test_survives_missing_numbers(realistic, missing):
    """Each number of a variant in turn, then all at once."""
    numbers = ("test_mean", "test_std", "val_mean", "seconds_per_epoch", "peak_bytes", "kept_bytes")
    for left_out in [*((name,) for name in numbers), numbers]:
        broken = copy.deepcopy(realistic)
        for variant in broken["variants"][:3]:
            for name in left_out:
                variant[name] = missing
                if missing == "absent":
                    del variant[name]
            variant["times_faster"] = {"pyg-csr": None}
        text = page(broken)
        Outline(text)
        assert all(math.isfinite(number) for number in coordinates(text))
        assert not re.search(r"\bnan\b|\binf\b|None", Outline(text).text)


@pytest.mark.parametrize("part", ["loss", "val", "seconds"])
@pytest.mark.parametrize("hole", [[], [None] * 100, [math.nan] * 100, [None, *[0.5] * 60, math.nan]])
def test_survives_holes_in_curves(realistic, part, hole):
    for variant in realistic["variants"][1:3]:
        for run in variant["runs"]:
            run["curve"][part] = hole
    text = page(realistic)
    Outline(text)
    assert all(math.isfinite(number) for number in coordinates(text))


@pytest.mark.parametrize("parts", [("dataset",), ("model",), ("settings",), ("machine",), ("baseline",), ("variants",)])
def test_survives_missing_parts(realistic, parts):
    for part in parts:
        del realistic[part]
    text = page(realistic)
    assert not re.search(r"\bnan\b|\binf\b|None", Outline(text).text)
    assert all(math.isfinite(number) for number in coordinates(text))
    assert bool(report.table(realistic).row_count) == ("variants" not in parts)


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 1},
        {"seeds": 1},
        {"seeds": 1, "epochs": 1},
        {"metric": "mae", "higher": False},
        {"metric": "roc_auc"},
        {"metric": "micro_f1"},
    ],
)
def test_small_and_other_comparisons(maker, settings):
    made = maker(**settings).add("pyg-csr", "PyG CSR", 0.73, 0.0, 3.3, 2.3e9, 1.4e9)
    text = page(made.add("float32", "float32 " * 20, 0.73, 0.0, 0.1, 1.1e6, 0, recipe="Recipe()").done())
    Outline(text)
    title = {"mae": "MAE", "roc_auc": "ROC AUC", "micro_f1": "Micro-F1"}.get(settings.get("metric"), "Accuracy")
    assert f"{title} against memory" in text
    assert all(math.isfinite(number) for number in coordinates(text))
    Outline(page(maker(**settings).add("float32", "float32", 0.73, 0.0, 1e-5, 900, 0, recipe="Recipe()").done()))


def test_long_training_is_thinned(maker):
    made = maker(epochs=5000, seeds=1).add("float32", "float32", 0.73, 0.0, 0.1, 1.1e9, 1e9, recipe="Recipe()")
    assert len(page(made.done())) < 80_000


def test_all_failed_and_nothing_at_all(maker):
    text = page(maker().fail("float32", "float32", "killed by signal 9", "Recipe()").done())
    assert "<h1>float32 failed: killed by signal 9</h1>" in text
    assert "<h1>Nothing was compared.</h1>" in page(maker().done())


def test_is_written_whole_or_not_at_all(realistic, tmp_path):
    path = tmp_path / "comparison.html"
    report.write_page(realistic, path)
    before = path.read_text(encoding="utf-8")
    assert before == page(realistic)
    with pytest.raises(ValueError, match="format"):
        report.write_page({**realistic, "format": "other"}, path)
    assert path.read_text(encoding="utf-8") == before
    assert [file.name for file in tmp_path.iterdir()] == ["comparison.html"]
    with pytest.raises(FileNotFoundError, match="create it"):
        report.write_page(realistic, tmp_path / "absent" / "comparison.html")


@pytest.mark.parametrize("wrong", [{}, {"format": "gossamer-comparison-2"}, [], None])
def test_names_what_is_not_a_comparison(wrong):
    with pytest.raises(
        ValueError, match=r"`comparison` must have the format 'gossamer-comparison-1' \(got .*json.load"
    ):
        page(wrong)


def test_a_comparison_goes_through_json(realistic):
    assert page(json.loads(json.dumps(realistic))) == page(realistic)


def test_the_command_repeats_it(realistic):
    words = shlex.split(command(read(realistic)))
    assert words[:3] == ["gossamer", "compare", "arxiv-like"]
    options = dict(zip(words[3::2], words[4::2], strict=True))
    assert options["--recipes"] == "float32,exact-int2,tango" and options["--baselines"] == "edge-index,csr"
    assert options["--seeds"] == "3" and options["--lr"] == "0.01" and "--heads" not in options
    told = {**realistic, "command": "gossamer compare digits --scale 0.1"}
    assert command(read(told)) == told["command"]
    assert told["command"] in Outline(page(told)).text
    assert "To repeat it" not in page({**realistic, "command": None})


def test_says_what_was_not_run(realistic):
    text = Outline(page({**realistic, "left_out": {"pyg-csr": "GATConv takes no <CSR>"}})).text
    assert "pyg-csr, not run" in text and "GATConv takes no <CSR>" in text


def test_the_inference_section(with_inference):
    outline = Outline(page(with_inference))
    for words in ("Inference: one call over 169,343 nodes", "engine int4, degree-quant", "0.430 s", "394 k", "140 kB"):
        assert words in outline.text
    assert "PyG compiled failed: InvalidCxxCompiler" in outline.text
    assert "pyg-none is left out: there is <none> of it" in outline.text
    captions = re.findall("<figcaption>(.*?)</figcaption>", page(with_inference))
    assert captions[-2:] == ["Time of a call", "File size"]
    assert all(math.isfinite(number) for number in coordinates(page(with_inference)))
    assert "Inference" not in page(with_inference | {"inference": None})
    assert command(read(with_inference)).endswith(" --inference")


@pytest.mark.parametrize(
    "broken", [{}, {"rows": None}, {"rows": [{}]}, {"of": None, "rows": [{"name": "a", "seconds": 0}]}]
)
def test_survives_holes_in_the_inference_table(realistic, broken):
    text = page(realistic | {"inference": broken})
    assert not re.search(r"\bnan\b|\binf\b", Outline(text).text)
    assert report.inference_table(realistic | {"inference": broken}).row_count == len(broken.get("rows") or [])


def test_escapes_the_inference_table(with_inference):
    text = page(hostile(with_inference))
    assert "<script" not in text and 'alert("1")' in Outline(text).text


def test_curves_end_with_the_shortest_run_and_count_the_clock():
    runs = [{"val": [1.0, 3.0, 9.0], "seconds": [1.0, 1.0, 1.0]}, {"val": [3.0, math.nan], "seconds": [3.0, 3.0]}]
    first, second = points_of(runs, "val")
    assert first == (1, 2.0, 2.0, math.sqrt(2))
    assert second == (2, 4.0, 3.0, 0.0)


def test_tags():
    assert tag("p", "a < b", tag("b", "c"), class_="x", aria_label='"') == (
        '<p class="x" aria-label="&quot;">a &lt; b<b>c</b></p>'
    )
    assert tag("line", x1=1.04, stroke_width=2.0, fill=None) == '<line x1="1" stroke-width="2"/>'
    assert isinstance(tag("p"), Markup)
