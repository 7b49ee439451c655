"""What an experiment has found so far: rows and their summary in NAME.json, who got which image right in NAME.npz."""

import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
from bootstrap import FEWEST, LEVEL, Interval, interval, over_seeds
from experiment import Experiment
from measuring import unpacked
from numpy.typing import NDArray

from tcnn.files import make_directory, replacing

sys.path.append(str(Path(__file__).parents[1]))
from reporting import hardware, versions

Row = dict[str, Any]
KINDS = ("clean", "corrupted")


class Results:
    """The two files; each is written whole, the images first, so that no row is ever without its images."""

    def __init__(self, file: Path, experiment: Experiment, device: str = "cpu") -> None:
        self.file, self.images = file, file.with_suffix(".npz")
        self.experiment, self.device = experiment, device
        self.rows: list[Row] = []
        self.told: Row = {}
        self.right: dict[str, NDArray[numpy.uint8]] = {}
        if file.is_file() and self.images.is_file():
            self.told = json.loads(file.read_text(encoding="utf-8"))
            self.rows = self.told["rows"]
            for row in self.rows:  # files of before have one machine for all
                row.setdefault("hardware", self.told["hardware"])
            with numpy.load(self.images) as content:
                self.right = dict(content)

    def has(self, arm: str, seed: int, digest: str) -> bool:
        """Whether there is a row of this recipe."""
        return any((row["arm"], row["seed"], row["digest"]) == (arm, seed, digest) for row in self.rows)

    def keep(self, digests: Mapping[tuple[str, int], str]) -> None:
        """Forget rows of another recipe or measurement than these: what they say cannot be set beside the others."""
        self.rows = [row for row in self.rows if digests.get((row["arm"], row["seed"])) == row["digest"]]

    def take(self, place: Path) -> None:
        """Add what an arm has left, in place of an older row of its own, and write."""
        row: Row = json.loads((place / "row.json").read_text(encoding="utf-8"))
        row["hardware"] = hardware(self.device)
        names = list(self.experiment.arms)
        own = (row["arm"], row["seed"])
        kept = [r for r in self.rows if (r["arm"], r["seed"]) != own and r["arm"] in names]
        self.rows = sorted([*kept, row], key=lambda r: (names.index(r["arm"]), r["seed"]))
        with numpy.load(place / "right.npz") as content:
            self.right |= {_key(row, kind): bits for kind, bits in content.items()}
        wanted = {_key(r, kind) for r in self.rows for kind in r["images"]}
        self.right = {key: bits for key, bits in sorted(self.right.items()) if key in wanted}
        self.told = {}
        self.write()

    def refresh(self) -> None:
        """Write what is told of the rows anew, if the experiment says it otherwise since, as by another label."""
        if self.told and self._content() != self.told:
            self.write()

    def _content(self) -> Row:
        machines = " and ".join(dict.fromkeys(str(row["hardware"]) for row in self.rows))
        return {
            "experiment": self.experiment.model_dump(mode="json"), "hardware": machines,
            "versions": self.told.get("versions") or versions("tcnn", "torch", "timm"), "summary": self.summary(),
            "rows": self.rows,
        }  # fmt: skip

    def write(self) -> None:
        """Both files."""
        make_directory(self.file.parent)
        with replacing(self.images, force=True) as temporary, temporary.open("wb") as handle:
            numpy.savez_compressed(handle, **self.right)  # type: ignore[arg-type]
        with replacing(self.file, force=True) as temporary:
            temporary.write_text(json.dumps(self._content(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def of(self, arm: str) -> dict[int, Row]:
        """The rows of an arm by seed."""
        return {row["seed"]: row for row in self.rows if row["arm"] == arm}

    def each(self, arm: str, seed: int, kind: str) -> NDArray[numpy.float64]:
        """Of every image the share of cases in which it was right, (N,)."""
        row = self.of(arm)[seed]
        return unpacked(self.right[_key(row, kind)], row["images"][kind]).mean(0)

    def summary(self) -> list[Row]:
        """Every arm: means over seeds, what it differs by from those that it is compared with, with intervals."""
        return [self._arm(arm) for arm in self.experiment.arms if self.of(arm)]

    def _arm(self, arm: str) -> Row:
        rows = list(self.of(arm).values())
        entry: Row = {"arm": arm, "label": self.experiment.label(arm), "seeds": len(rows)}
        for kind in KINDS:
            if kind in rows[0]["images"]:
                entry[kind] = _told(interval(numpy.stack([self.each(arm, seed, kind) for seed in self.of(arm)])))
        for key in ("updates", "train_seconds", "images_per_second", "parameters"):
            if values := [row[key] for row in rows if row.get(key) is not None]:
                entry[key] = round(statistics.mean(values), 1)
        one = self.experiment.arms[arm]
        others = (one.control, self.experiment.reference, *one.beside, one.equal_time_to)
        for other in dict.fromkeys(name for name in others if name and name != arm):
            if gains := self.against(arm, other):
                entry.setdefault("against", {})[other] = gains
        return entry

    def against(self, arm: str, other: str) -> Row:
        """Differences arm − other over the seeds that both have.

        Clean and corrupted accuracy have intervals over images and seeds, the cross-entropy of clean images over seeds.
        """
        mine, theirs = self.of(arm), self.of(other)
        once = next(iter(theirs)) if len(theirs) == 1 and not self.experiment.arms[other].train else None
        pairs = [(seed, seed if once is None else once) for seed in mine if once is not None or seed in theirs]
        gains: Row = {}
        for kind in KINDS if pairs else ():
            if all(kind in row["images"] for row in (*mine.values(), *theirs.values())):
                cells = [self.each(arm, seed, kind) - self.each(other, their, kind) for seed, their in pairs]
                gains[kind] = _told(interval(numpy.stack(cells)))
        losses = [(mine[seed].get("loss"), theirs[their].get("loss")) for seed, their in pairs]
        told = [own - its for own, its in losses if own is not None and its is not None]
        if gains and len(told) == len(pairs) >= FEWEST:
            gains["loss"] = _told(over_seeds(told))
        return {"seeds": len(pairs), **gains} if gains else {}


def _told(found: Interval) -> Row:
    return {"mean": round(found.mean, 5), "interval": [round(found.low, 5), round(found.high, 5)], "level": LEVEL}


def _key(row: Row, kind: str) -> str:
    return f"{row['arm']}/{row['seed']}/{kind}"
