"""timm's families, and one model of one of them through the check of `benchmarks/zoo/sweep.py`."""

from benchmarks.zoo.check import VERIFIED, check
from tcnn.zoo import catalogue


def smallest_of_every_family() -> list[str]:
    """The convertible model with the fewest parameters of every family that has one."""
    families: dict[str, catalogue.Entry] = {}
    for entry in catalogue.entries().values():
        before = families.get(entry.family)
        if entry.convertible and (before is None or entry.parameters < before.parameters):
            families[entry.family] = entry
    return [entry.name for entry in families.values()]


def assert_verified(family: str, name: str) -> None:
    """It converts, and computes what it did."""
    row = check(name)
    assert (row.family, row.status, row.reason) == (family, VERIFIED, "")
    assert float(row.error32) <= 1e-5 and float(row.layer32) <= 1e-5
    assert float(row.error64) <= 1e-10 and float(row.layer64) <= 1e-10
    # Far above the errors: the logits do notice what the converted layers do.
    assert float(row.drift) > 1e-4
    assert int(row.layers) >= 1 and int(row.parameters_after) > int(row.parameters_before)
