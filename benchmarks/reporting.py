"""Reporting of measurements: what a benchmark ran on, for its file of numbers, and these as Markdown tables of a page.

The tables here are those of docs/speed.md.
"""

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CPUINFO = Path("/proc/cpuinfo")
Result = dict[str, Any]
"""What a benchmark has written; `rows` is what it has measured."""


def processor() -> str:
    """The processor and how many cores it has: "AMD EPYC, 2 cores"."""
    return f"{_name()}, {os.cpu_count()} cores"


def hardware(device: str) -> str:
    """What computes: the processor, or the GPU by its name. Nothing ever sets a GPU's clocks."""
    if device == "cpu":
        return processor()
    import torch

    return str(torch.cuda.get_device_name())


def versions(*names: str) -> dict[str, str]:
    """Of these packages; tcnn may be a checkout that nobody has installed."""
    return {name: _version(name) for name in names}


def _version(name: str) -> str:
    if name == "tcnn":
        from tcnn.version import __version__

        return __version__
    return importlib.metadata.version(name)


def _name() -> str:
    for line in CPUINFO.read_text(encoding="utf-8").splitlines() if CPUINFO.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def fill(page: Path, mark: str, table: str) -> None:
    """Put a table behind its mark, `<!-- mark -->`, in place of the one before."""
    text = page.read_text(encoding="utf-8")
    page.write_text(re.sub(rf"(<!-- {mark} -->\n)(?:\|.*\n)*", lambda found: found[1] + table, text), encoding="utf-8")


def layers(result: Result) -> str:
    """Of `gpsa.py`: one layer beside the convolution and beside ConViT."""
    replayed = any("replayed_ms" in row for row in result["rows"])
    head = ["channels, map, batch", "", "layer", "ms", "÷ convolution", "÷ ConViT", "÷ ConViT, one W_val", "÷ timm's"]
    head += ["floor", "replayed, ms", "÷ convolution", "÷ ConViT", "floor"] if replayed else ["floor"]
    lines = [_line(head).replace("|  |", "| |"), "|" + "---|" * len(head)]
    for row in result["rows"]:
        cells = [
            f"{row['channels']}, {row['map']}, {row['batch']}", row["what"], row["name"], _milliseconds(row["ms"]),
            f"{row['of_convolution']:.2f}", f"{row['of_convits_formulas']:.2f}",
            f"{row['of_convits_with_one_value']:.2f}", f"{row['of_convit_in_timm']:.2f}", f"{row['floor_share']:.2f}",
        ]  # fmt: skip
        if replayed:
            of = (row[f"replayed_{name}"] for name in ("of_convolution", "of_convits_formulas", "floor_share"))
            cells += [_milliseconds(row["replayed_ms"]), *(f"{one:.2f}" for one in of)]
        lines.append(_line(cells))
    return "\n".join(lines) + "\n"


def networks(result: Result) -> str:
    """Of `throughput.py`: networks beside those that they are compared with."""
    lines = [
        "| network | | images/s | 10⁹ multiply-adds | beside | images/s ÷ its | its multiply-adds ÷ these |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        cells = [row["network"], row["what"], f"{row['images_per_second']:.2f}", f"{row['giga_multiply_adds']:.2f}"]
        lines.append(_line((*cells, *_pair(row, f"{row.get('ratio_of_multiply_adds', 0):.2f}"))))
    return "\n".join(lines) + "\n"


def networks_of_a_gpu(rows: list[Result]) -> str:
    """The same, eager and compiled, with the share of the arithmetic's floor."""
    lines = [
        "| network | | | images/s | 10⁹ multiply-adds | floor | beside | images/s ÷ its |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (
            row["network"], row["what"], _execution(row),
            f"{row['images_per_second']:.0f}", f"{row['giga_multiply_adds']:.2f}", f"{row['floor_share']:.2f}",
        )  # fmt: skip
        lines.append(_line((*cells, *_pair(row))))
    return "\n".join(lines) + "\n"


def _execution(row: Result) -> str:
    if not row["compiled"]:
        return "eager"
    ways = {"graphs": "replayed", "transparent": "transparent operators"}
    return ", ".join(["compiled", *(told for way, told in ways.items() if row.get(way))])


def _pair(row: Result, *more: str) -> tuple[str, ...]:
    if "against" not in row:
        return ("", "", *("" for _ in more))
    return (row["against"], f"{row['ratio']:.2f}", *more)


def _milliseconds(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
