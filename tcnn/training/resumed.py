"""A run that is resumed: where its paths lead from here, what changed since, what it has learned from until then."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tcnn.config import ConversionConfig, FinetuneConfig
from tcnn.config.conversion import as_kept
from tcnn.data.sources import names
from tcnn.errors import RequestError, shorten
from tcnn.evaluation.held_out import trainings_in
from tcnn.training.record import Sources, working_directory
from tcnn.training.runs.callbacks import Say
from tcnn.training.runs.resume import Position
from tcnn.training.runs.rundir import RunDirectory, changed_settings

PATHS = ("model", "data", "val")
"""What a record has by its name or path, beside `config.teacher`."""


def seen_from_here(
    sources: Sources, config: FinetuneConfig, before: Mapping[str, Any]
) -> tuple[Sources, FinetuneConfig]:
    """What a run is resumed with; relative paths that lead nowhere here, from the directory that it began in."""
    home = before.get("directory")
    if home is None:  # a run of 0.2.0, or one that is known by other names
        return sources, config

    def here(value: Any) -> Any:
        seen = names.seen_from_here(str(value), Path(home)) if isinstance(value, str | Path) else value
        return Path(seen) if isinstance(value, Path) else seen

    if config.teacher != "source":
        config = config.model_copy(update={"teacher": here(config.teacher)})
    places = {name: here(getattr(sources, name)) for name in (*PATHS, "weights")}
    return sources._replace(**places), config


class Resumed:
    """A run that is resumed, beside what its config.json says of it.

    Args:
        record: what the run would be, if it began now.
        position: where the resume point is; None without one, where it begins anew.
    """

    def __init__(self, run: RunDirectory, record: dict[str, Any], position: Position | None) -> None:
        self._run, self._now, self._before = run, record, run.record()
        self._changes = _changes(self._before, record)
        self._begun = position is not None
        self.record: dict[str, Any] = record
        """With what it has learned from, and what changed when."""
        if position is not None:
            self.record = _continued(self._before, record, self._changes, position)

    def check(self, allow: bool, say: Say) -> None:
        """Raise `RequestError` if anything changed, unless that is allowed and can be gone on with; then say what."""
        before, now = self._before, self._now
        share, other = (one.get("config", {}).get("fraction", 1.0) for one in (before, now))
        if self._begun and share != other:
            raise RequestError(
                f"{self._run.path}: fraction: expected {share:g} as before, for the run's epochs are counted in it, "
                f"found {other:g}; give the same one"
            )
        if _as_many(before, now) and before.get("images", now["images"]) != now["images"]:
            say(  # perhaps by another decoder: nothing to end for
                "note: the images are others than the run began with, or in another order, or decoded otherwise: it "
                "may have learned from those that are held out now"
            )
        if self._changes and not allow:
            raise RequestError(
                f"{self._run.path}: ran with other settings ({'; '.join(self._changes)}); give the same ones, or "
                "--allow-changes"
            )
        for change in self._changes:
            say(f"changed: {change}")

    def changed(self, given: Collection[str]) -> list[str]:
        """Those of the settings that have another value than the run had last."""
        before, now = with_defaults(self._before.get("config", {})), self._now["config"]
        return [name for name in given if before.get(name) != now[name]]

    def forget_best(self, position: Position) -> bool:
        """Forget the best epoch if it was measured on other images, or at another size, than those to come."""
        since = max((one.get("best_from", 0) for one in self.record.get("changes", ())), default=0)
        forgotten = position.best_epoch is not None and position.best_epoch < since
        if forgotten:
            position.best = position.best_epoch = None
        return forgotten

    def write(self, sources: Sources) -> None:
        """Write what the run goes on with to config.json, if anything changed: the next resume is compared with it."""
        before = self._before
        home = {"directory": before["directory"]} if "directory" in before else working_directory(sources)
        if self._changes or self.record["earlier"] != before.get("earlier", self.record["earlier"]):
            self._run.write_record({**self.record, **home})


def _changes(before: Mapping[str, Any], record: Mapping[str, Any]) -> list[str]:
    """What is not as config.json says, as `name: before → after`; a path that is written in another way is the same."""
    settings = with_defaults(before.get("config", {}))
    teacher = record["config"]["teacher"]
    if _same_path(before, settings["teacher"], teacher):
        settings["teacher"] = teacher
    changes = changed_settings(settings, record["config"])
    for key in (*PATHS, "size", "class_names"):
        if not _same(before, key, record):
            changes.append(f"{key}: {shorten(str(before.get(key)), 60)} → {shorten(str(record[key]), 60)}")
    # Of more images or fewer others would be held out, which the run has learned from; older runs have no count.
    if not _as_many(before, record):
        changes.append(f"images in the data set: {before['image_count']} → {record['image_count']}")
    elif not _as_listed(before, record):
        changes.append("images in the data set: another class, file name, order or part of it")
    return changes


def _continued(
    before: Mapping[str, Any], record: Mapping[str, Any], changes: list[str], position: Position
) -> dict[str, Any]:
    """The record of a run that goes on from a position.

    Its weights come from a resume point, so what it began with is what config.json says, whatever `model` is now. If
    other images are held out from now on, the training until now is an earlier one.
    """
    earlier = list(before.get("earlier", record["earlier"]))
    same_part = _same_part(before, record)
    for until_now, *others in filter(None, [trainings_in({**before, "earlier": earlier})]):
        if not same_part and until_now not in others:  # an earlier release has recorded less of each
            earlier.insert(0, until_now._asdict())
    config = dict(record["config"])
    found = {**record, "earlier": earlier, "config": config, "weights": before.get("weights", record["weights"])}
    for key in PATHS:  # as seen from the directory in which the run began, which config.json keeps
        found[key] = _kept(before, before.get(key), record[key])
    config["teacher"] = _kept(before, with_defaults(before.get("config", {}))["teacher"], config["teacher"])
    change: dict[str, Any] = {"updates": position.updates, "changed": changes or ["images, or their order"]}
    if not (same_part and _same(before, "size", record)):
        change["best_from"] = position.epoch
    listed = [*before.get("changes", ()), *([change] if changes or not same_part else [])]
    return found | ({"changes": listed} if listed else {})


def _same_part(before: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    """Whether the images that are held out now are those that were, as far as is known."""
    then, now = before.get("config", {}), record["config"]
    return (
        all(_same(before, key, record) for key in ("data", "val", "class_names"))
        and all(then.get(key) == now[key] for key in ("val_split", "seed"))
        and _as_many(before, record)
        and _as_listed(before, record)
        and not _reordered(before, record)
    )


def _as_many(before: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    return bool(before.get("image_count", record["image_count"]) == record["image_count"])


def _as_listed(before: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    return bool(before.get("listing", record["listing"]) == record["listing"])


def _reordered(before: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    """Whether they are the same images in another order, as where some are of other classes now."""
    then, now = ((one.get("images"), one.get("image_set")) for one in (before, record))
    return None not in then and then[0] != now[0] and then[1] == now[1]


def _same(before: Mapping[str, Any], key: str, record: Mapping[str, Any]) -> bool:
    then, now = before.get(key), record[key]
    return then == now or (key in PATHS and _same_path(before, then, now))


def _same_path(before: Mapping[str, Any], then: object, now: object) -> bool:
    """Whether a path that is written in another way is the one that the run began with."""
    home = before.get("directory")
    if home is None or not isinstance(then, str) or not isinstance(now, str):
        return False
    return names.located(then, Path(home)) == names.located(now, Path.cwd())


def _kept(before: Mapping[str, Any], then: object, now: Any) -> Any:
    """A name for the record of a run: as it was, or where it leads to, if it is another one now."""
    if then == now or _same_path(before, then, now):
        return then
    return names.located(now, Path.cwd()) if isinstance(now, str) and "directory" in before else now


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run of an earlier release, with today's defaults for those that it did not have."""
    conversion = config.get("conversion")
    if isinstance(conversion, dict):
        config = {**config, "conversion": ConversionConfig().model_dump(mode="json") | as_kept(conversion)}
    return {**FinetuneConfig().model_dump(mode="json"), **config}
