"""Results as timm's validate.py writes them: the columns of its tables, and what its bulk_runner.py reads."""

from typing import Any

from tcnn.evaluation.comparing.report import Comparison, Row

COLUMNS = (
    "model", "img_size", "top1", "top1_err", "top5", "top5_err", "param_count", "crop_pct", "interpolation",
)  # fmt: skip


def timm_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One row for every model and size measured on clean images: accuracies in percent, parameters in millions.

    Among fewer than five classes the right one is always among the first five.
    """
    return [_row(row) for row in comparison.rows if row.clean is not None]


def _row(row: Row) -> dict[str, Any]:
    assert row.clean is not None  # noqa: S101 - the caller has looked
    top1, top5 = 100 * row.clean.top1, 100 * (1.0 if row.clean.top5 is None else row.clean.top5)
    values = (
        row.model, row.width, round(top1, 4), round(100 - top1, 4), round(top5, 4), round(100 - top5, 4),
        round(row.parameters / 1e6, 2), row.crop_pct, row.interpolation,
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))
