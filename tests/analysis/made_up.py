"""Inspections, metrics and evaluations as large and as oddly named as a test wants them; and pages of HTML read
back.
"""

import base64
import io
import math
import random
from html.parser import HTMLParser
from typing import Any

from data_pictures import picture

from tcnn.analysis.reading.evaluations import EvaluatedRow
from tcnn.analysis.records import Head, Inspection, Layer, LayerMaps, Measure, NonLocality, Picture

HOSTILE = (
    "<script>alert(1)</script>", "$\\frac{1}{0}$ $x$", "_hidden", "a" * 300, "new\nline\ttab", "\u202eright to left",
    "💣 猫", "&amp; \"quoted\" 'names'", "{{ 7*7 }} {% raw %}", "../../etc/passwd",
)  # fmt: skip
"""Names that mean something to HTML, TeX, matplotlib, Jinja or a terminal."""


def inspection(
    heads: int = 9, layers: int = 2, names: tuple[str, ...] = (), side: int = 6, seed: int = 0
) -> Inspection:
    """Layers whose heads lie on a kernel's grid, and one picture with their maps."""
    draw = random.Random(seed)
    wide = math.ceil(heads**0.5)

    def measure() -> Measure:
        return Measure(total=draw.uniform(0, 3), content=draw.uniform(0, 3), positional=draw.uniform(0, 3))

    def head(number: int) -> Head:
        tap = divmod(number, wide)
        offset = (tap[0] - wide // 2, tap[1] - wide // 2)
        centre = (offset[0] + draw.gauss(0, 0.3), offset[1] + draw.gauss(0, 0.3))
        gate, span = draw.random(), draw.uniform(0.2, 2)
        return Head(head=number, tap=tap, tap_offset=offset, centre=centre, gate=gate, span=span,
                    radius_50=(0.7 * span) ** 0.5, radius_90=(2.3 * span) ** 0.5, non_locality=measure(),
                    entropy=measure())  # fmt: skip

    def name(number: int) -> str:
        return names[number % len(names)] if names else f"layer4.{number}.conv"

    def weights() -> list[list[list[float]]]:
        return [[[draw.random() for _ in range(side)] for _ in range(side)] for _ in range(heads)]

    made = [
        Layer(name=name(n), kind="gpsa2d", map=(side, side), padding=(1, 1, 1, 1), queries=(side - 2, side - 2),
              kernel_size=(wide, wide), dilation=(1, 1), temperature=1.0, gate_temperature=1.0, gate=0.5, span=1.0,
              non_locality=measure(), entropy=measure(), prefix=0.0, heads=[head(h) for h in range(heads)])
        for n in range(layers)
    ]  # fmt: skip
    maps = [
        LayerMaps(layer=name(n), padding=(1, 1, 1, 1), query=(side // 2, side // 2),
                  gates=[draw.random() for _ in range(heads)], content=weights(), positional=weights(),
                  combined=weights())
        for n in range(layers)
    ]  # fmt: skip
    buffer = io.BytesIO()
    picture(seed, width=40, height=40).save(buffer, "PNG")
    shown = Picture(name=name(0), png=base64.b64encode(buffer.getvalue()).decode(), layers=maps)
    return Inspection(model=name(0), size=(40, 40), images=1, unreadable=[], query=(0.5, 0.5), layers=made,
                      pictures=[shown], against=[NonLocality(model=name(1), layers=made)])  # fmt: skip


def metrics(epochs: int = 5, layers: int = 2, heads: int = 9, names: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """What metrics.jsonl holds."""
    draw = random.Random(1)
    called = [names[n % len(names)] + str(n) if names else f"layer4.{n}.conv" for n in range(layers)]
    rows: list[dict[str, Any]] = []
    for epoch in range(epochs):
        rows.append({"kind": "train", "epoch": epoch, "step": 1, "loss": 1.0, "updates": epoch})
        rows.append(
            {
                "kind": "epoch", "epoch": epoch, "updates": epoch + 1, "train_loss": draw.random(), "lr": 1e-3,
                "temperature": min(1.0, 0.05 * 2**epoch),
                "val": {"top1": draw.random(), "top5": 1.0, "loss": draw.random(), "images": 10},
                "gates": {name: [draw.random() for _ in range(heads)] for name in called},
                "spans": {name: [draw.uniform(0.3, 3) for _ in range(heads)] for name in called},
            }
        )  # fmt: skip
    return rows


def evaluated(name: str, top1: float, size: int = 224, corruptions: tuple[str, ...] = ()) -> EvaluatedRow:
    """One row of `tcnn evaluate --json`; a corruption of severity s costs s per cent."""
    worse = {severity: {"images": 10, "top1": top1 - severity / 100} for severity in range(1, 6)}
    return EvaluatedRow.model_validate(
        {
            "model": name, "height": size, "width": size, "parameters": 7,
            "clean": {"images": 10, "top1": top1, "top5": 1.0, "loss": 0.5},
            "corruption_top1": top1 - 0.03, "mce": None,
            "corruptions": {each: {"top1": top1 - 0.03, "severities": worse} for each in corruptions},
        }
    )  # fmt: skip


class Page(HTMLParser):
    """The elements and the text of a page, and that every element is closed."""

    VOID = frozenset({"meta", "img", "br", "link", "input", "hr"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.titles: list[str] = []
        self.scripts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] not in (["style"], ["script"]):
            self.text += data
        if self._open[-1:] == ["script"]:
            self.scripts.append(data)
        if self._open[-1:] == ["h2"]:
            self.titles.append(data)
