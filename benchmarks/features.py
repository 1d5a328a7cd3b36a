"""Compressed features (BiFeat): what gathering and encoding rows costs against float32 and float16.

    python benchmarks/features.py gather [--shapes 1000000x128,300000x768] [--ids 100000]
    python benchmarks/features.py encode [--shapes 1000000x128,300000x768]

Each part runs the tests of what it measures first, and writes its own JSON.

gather   rows by random ids: `x[ids]` of float32 and float16, the same into a result that is reused, our copy of float32
         rows, and each codec, which decodes to float32 (and to bfloat16) on the way
encode   a pass over the matrix with a fitted codec, against reading it once
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, best_times, machine, require_green, write_json

import gossamer as gs
from gossamer.codecs.product import ProductFit
from gossamer.ops.gather_codes import id_bits
from gossamer.ops.pack_ids import row_bytes

SCALAR = [gs.Scalar(bits, per=per) for bits in (1, 2, 4, 8) for per in ("tensor", "column")]
PRODUCT = [gs.Product(16, 2048), gs.Product(16, 256)]
PRINCIPAL = [gs.Principal(2, gs.Scalar(4, per="column"))]
ROWS_OF_PRODUCT = 50_000  # encoded: a search among 2048 entries is arithmetic, and takes as long for every row


def shapes_of(text: str) -> list[tuple[int, int]]:
    return [tuple(map(int, shape.split("x"))) for shape in text.split(",")]  # type: ignore[misc]


def name_of(codec: gs.Codec) -> str:
    if isinstance(codec, gs.Scalar):
        return f"scalar:{codec.bits}:{codec.per}"
    if isinstance(codec, gs.Principal):
        return f"principal:{codec.ratio}:{name_of(codec.then)}"
    assert isinstance(codec, gs.Product)
    return f"product:{codec.width}x{codec.length}"


def random_codes(codec: gs.Codec, rows: int, columns: int) -> gs.Codes:
    """Codes and tables of random bits: how fast rows are decoded does not depend on what they hold."""
    rng = torch.Generator().manual_seed(0)
    if isinstance(codec, gs.Principal):
        width = math.ceil(columns / codec.ratio)
        mean, scale, directions = (torch.randn(size, columns, generator=rng) for size in (1, 1, width))
        coded = random_codes(codec.then, rows, width)
        tensors = (*coded.tensors, mean[0], scale[0], directions.half())
        return coded._replace(tensors=tensors, shape=torch.Size((rows, columns)))
    if isinstance(codec, gs.Scalar):
        table = torch.randn(2**codec.bits, columns if codec.per == "column" else 1, generator=rng)
        count, tables = row_bytes(columns, codec.bits), (table,)
    else:
        assert isinstance(codec, gs.Product)
        books, scale, _ = random_books(codec, columns)
        count, tables = row_bytes(len(scale), id_bits(codec.length)), (books, scale)
    packed = torch.randint(0, 256, (rows, count), dtype=torch.uint8, generator=rng)
    return gs.Codes((packed, *tables), torch.Size((rows, columns)), torch.float32)


def random_books(codec: gs.Product, columns: int) -> ProductFit:
    books = torch.randn(columns * codec.length, generator=torch.Generator().manual_seed(1))
    return ProductFit(books.half(), torch.ones(-(-columns // codec.width)), columns)


def gather(args: argparse.Namespace) -> list[dict[str, Any]]:
    results = []
    for rows, columns in shapes_of(args.shapes):
        x = torch.randn(rows, columns)
        half, ids = x.half(), torch.randint(0, rows, (args.ids,))
        reused, reused_half = x.new_empty(args.ids, columns), half.new_empty(args.ids, columns)
        runs: dict[str, Callable[[], Any]] = {
            "x[ids] float32": lambda x=x, ids=ids: x[ids],
            "x[ids] float16": lambda half=half, ids=ids: half[ids],
            "float32, result reused": lambda x=x, ids=ids, to=reused: torch.index_select(x, 0, ids, out=to),
            "float16, result reused": lambda x=half, ids=ids, to=reused_half: torch.index_select(x, 0, ids, out=to),
            "our copy of float32": lambda x=x, ids=ids: gs.ops.gather_rows(x, ids),
        }
        stored = {}
        for codec in [*SCALAR, *PRODUCT, *PRINCIPAL]:
            codes = random_codes(codec, rows, columns)
            stored[name_of(codec)] = codes.nbytes
            for dtype in (torch.float32, torch.bfloat16):
                label = name_of(codec) + (" to bfloat16" if dtype == torch.bfloat16 else "")
                runs[label] = lambda codec=codec, codes=codes, ids=ids, to=dtype: codec.decode_rows(codes, ids, to)
        seconds = best_times(runs, args.repeat)
        results.append({"rows": rows, "columns": columns, "ids": args.ids, "seconds": seconds, "bytes": stored})
        show(f"{rows} x {columns}, {args.ids} rows", seconds, "x[ids] float32", args.ids)
    return results


def encode(args: argparse.Namespace) -> list[dict[str, Any]]:
    results = []
    for rows, columns in shapes_of(args.shapes):
        x = torch.randn(rows, columns)
        runs: dict[str, Callable[[], Any]] = {"read (max)": lambda x=x: x.max()}
        for codec in SCALAR:
            fitted = codec.fit(x[:20_000])
            runs[name_of(codec)] = lambda fitted=fitted, x=x: fitted.encode(x)
        runs["accumulate of scalar:1"] = accumulating(gs.Scalar(1, per="tensor").fit(x[:20_000]), x)
        seconds = best_times(runs, args.repeat)
        some, of_product = x[:ROWS_OF_PRODUCT], {}
        for codec in PRODUCT:
            fitted = dataclasses.replace(codec, fitted=random_books(codec, columns))
            of_product[name_of(codec)] = lambda fitted=fitted, some=some: fitted.encode(some)
        slow = best_times(of_product, 2)
        results.append({"rows": rows, "columns": columns, "seconds": seconds, "seconds_of_50000_rows": slow})
        show(f"{rows} x {columns}", seconds, "read (max)", rows)
        show(f"{len(some)} x {columns}", slow, name_of(PRODUCT[0]), len(some))
    return results


def accumulating(codec: gs.Scalar, x: torch.Tensor) -> Callable[[], None]:
    codes, refining = codec.encode(x), codec.start_refining()
    return lambda: codec.accumulate(refining, x, codes)


def show(title: str, seconds: dict[str, float], baseline: str, rows: int) -> None:
    print(title)
    for name, value in seconds.items():
        speed = f"{1e3 * value:8.2f} ms  {rows / value / 1e6:8.2f} M rows/s"
        print(f"  {name:32} {speed}  {seconds[baseline] / value:6.2f}x {baseline}", flush=True)


PARTS = {"gather": gather, "encode": encode}
TESTS = {"gather": ["ops/test_gather_codes.py", "ops/test_row_products.py"], "encode": ["ops/test_encode_codes.py"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    for name in PARTS:
        part = parts.add_parser(name)
        part.add_argument("--shapes", default="1000000x128,300000x768")
        part.add_argument("--repeat", type=int, default=7)
        part.add_argument("--threads", type=int, default=torch.get_num_threads())
        part.add_argument("--out", type=Path, help=f"default: benchmarks/results/features-{name}.json")
        if name == "gather":
            part.add_argument("--ids", type=int, default=100_000)
    args = parser.parse_args()
    require_green(TESTS[args.part])
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    results = PARTS[args.part](args)
    out = args.out or RESULTS / f"features-{args.part}.json"
    write_json(out, {"machine": machine(), "repeat": args.repeat, "results": results})
    print(f"Written: {out}")


if __name__ == "__main__":
    main()
