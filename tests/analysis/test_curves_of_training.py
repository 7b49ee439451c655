"""Curves of training, in pictures and in the rows of a report: every τ, and a gap where a value is not finite."""

import json
import math
from pathlib import Path
from typing import Any

import made_up
import pytest

from tcnn.analysis.pages import curves
from tcnn.analysis.pages.curves import curves_of_training
from tcnn.analysis.pages.report import report
from tcnn.analysis.plots import gallery, training


@pytest.mark.parametrize(("position", "gate"), [(0.25, 3.0), (5.0, 5.0), (0.004, 0.004), (1.0, None)])
def test_every_temperature_is_in_the_picture(position: float, gate: float | None) -> None:
    """That of the gates, too, where it is another; and no line leaves the axis."""
    taus = {"temperature": position, "gate_temperature": gate}
    rows = [{**row, **taus} for row in made_up.metrics(epochs=2)]
    assert all(row["gate_temperature"] == gate for row in curves_of_training(rows))
    made = training.progress(rows)
    assert made is not None
    ax = made.axes[2]
    expected = [position] if gate in (None, position) else [position, gate]
    assert [list(line.get_ydata()) for line in ax.lines] == [[tau, tau] for tau in expected]  # type: ignore[arg-type]
    low, high = ax.get_ylim()
    assert low < min(expected) and max(expected) < high and low <= 1 / 60 and high >= 1.4
    legend = ax.get_legend()
    names = [] if legend is None else [text.get_text() for text in legend.get_texts()]
    assert names == (["positions", "gates"] if len(expected) == 2 else [])


@pytest.mark.parametrize(("gate", "columns"), [(3.0, ["τ of positions", "τ of gates"]), (0.25, ["τ"])])
def test_every_temperature_is_in_the_table(gate: float, columns: list[str], tmp_path: Path) -> None:
    row = {"kind": "epoch", "epoch": 0, "temperature": 0.25, "gate_temperature": gate}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row))
    page = report(tmp_path)
    assert "".join(f"<th>{one}</th>" for one in ["learning rate", *columns]) + "</tr>" in page
    assert "<td>0.25</td><td>3</td></tr>" in page or len(columns) == 1


def test_a_loss_that_is_not_finite_is_called_so_in_the_table(tmp_path: Path) -> None:
    """Where a file has none at all nothing is told of it."""
    row = {"kind": "epoch", "epoch": 0, "train_loss": 0.5, "val": {"top1": 0.5, "top5": None, "loss": None}}
    (tmp_path / "metrics.jsonl").write_text(f'{json.dumps(row)}\n{{"kind": "epoch", "epoch": 1}}')
    page = report(tmp_path)
    assert "<td>–</td>\n<td>not finite</td><td>0.5</td>" in page
    assert page.count("not finite</td>") == 1


def test_one_epoch_is_a_dot() -> None:
    for drawn in gallery.training_plots(made_up.metrics(epochs=1, layers=1, heads=2)):
        assert any(line.get_marker() == "o" for line in drawn.figure.axes[0].lines)


def lines_of(ax: Any) -> list[tuple[list[int], list[float | None], list[int]]]:
    """Of every line the places, the values, None where there is a gap, and at which of them it has dots."""
    return [
        (
            list(line.get_xdata()),
            [None if math.isnan(value) else value for value in line.get_ydata()],
            line.get_markevery() if line.get_marker() == "o" else [],
        )
        for line in ax.lines
    ]


@pytest.mark.parametrize(
    ("losses", "drawn", "dots"),
    [
        ([1.0, None, 0.6, 0.5], [1.0, None, 0.6, 0.5], [0]),
        ([1.0, 0.5, None, math.nan], [1.0, 0.5, None, None], []),
        ([math.inf, 0.5, None, 0.4], [None, 0.5, None, 0.4], [1, 3]),
    ],
)
def test_a_line_has_a_gap_where_a_loss_is_not_finite(
    losses: list[float | None], drawn: list[float | None], dots: list[int]
) -> None:
    """What is alone between gaps is a dot; a line that is never finite is not there."""
    rows = made_up.metrics(epochs=4)
    for row, loss in zip([row for row in rows if row["kind"] == "epoch"], losses, strict=True):
        row["val"] |= {"loss": loss, "top5": None}
        row["train_loss"] = 1.0
    made = training.progress(rows)
    assert made is not None
    assert len(made.axes[0].lines) == 1
    trained, validated = lines_of(made.axes[1])
    assert trained == ([1, 2, 3, 4], [1.0] * 4, [])
    assert validated == ([1, 2, 3, 4], drawn, dots)


def test_of_many_steps_gaps_and_peaks_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "MOST_STEPS", 20)
    rows: list[dict[str, Any]] = [{"kind": "train", "updates": at, "loss": 1.0} for at in range(200)]
    for at, loss in ((77, math.nan), (78, 9.0), (79, 0.1), (150, None)):
        rows[at]["loss"] = loss
    kept = {row["updates"]: row["loss"] for row in curves_of_training(rows)}
    assert len(kept) <= 22
    assert {at: kept.get(at, "left out") for at in (77, 78, 79, 150)} == {77: None, 78: 9.0, 79: 0.1, 150: None}
