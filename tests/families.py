"""One model of one of timm's families through the check of `benchmarks/zoo.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from zoo_check import VERIFIED, check


def assert_verified(family: str, name: str) -> None:
    """It converts, and computes what it did."""
    row = check(name)
    assert (row.family, row.status, row.reason) == (family, VERIFIED, "")
    assert float(row.error32) <= 1e-5 and float(row.layer32) <= 1e-5
    assert float(row.error64) <= 1e-10 and float(row.layer64) <= 1e-10
    # Far above the errors: the logits do notice what the converted layers do.
    assert float(row.drift) > 1e-4
    assert row.layers >= 1 and row.parameters_after > row.parameters_before
