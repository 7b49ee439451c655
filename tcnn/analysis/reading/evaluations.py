"""Read evaluation files (the output of `tcnn evaluate --json`), without torch."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from tcnn.config.base import Record
from tcnn.errors import RequestError
from tcnn.formatting import distinct, some, unreadable


class Given(str):
    """A name that somebody gave: it may have a slash, and is no path."""

    __slots__ = ()


class EvaluatedScore(Record):
    """Accuracies as shares between 0 and 1."""

    images: int
    top1: float
    top5: float | None = None
    loss: float | None = None


class EvaluatedCorruption(Record):
    """Results of one corruption, by severity."""

    top1: float
    severities: dict[int, EvaluatedScore]


class EvaluatedRow(Record):
    """Results of one model at one size."""

    model: str
    parameters: int | None = None
    height: int
    width: int
    clean: EvaluatedScore | None = None
    corruptions: dict[str, EvaluatedCorruption] = Field(default_factory=dict)
    corruption_top1: float | None = None
    mce: float | None = None
    unreadable: tuple[str, ...] = ()
    """Images that could not be read; of many the first."""
    unreadable_count: int = 0

    @property
    def size(self) -> str:
        """The image size as text: `224`, or `224×160`."""
        return f"{self.height}" if self.height == self.width else f"{self.height}×{self.width}"


class EvaluationFile(Record):
    """Results of several models on one data set."""

    data: str
    images: int
    rows: tuple[EvaluatedRow, ...]
    held_out: bool = False
    """Whether only images were measured that training had held out."""
    trained_on: tuple[str, ...] = ()
    """Models that were trained on some of the images."""
    part_lost: tuple[str, ...] = ()
    """Those of them that held a part out, which cannot be told any more."""

    @property
    def left_out(self) -> str:
        """What is said of images that could not be read by the model that could read fewest; or nothing."""
        worst = max(self.rows, key=lambda row: row.unreadable_count, default=None)
        if worst is None or not worst.unreadable_count:
            return ""
        named, count = worst.unreadable[:3], worst.unreadable_count
        names = ", ".join(name.removeprefix(f"{self.data}/") for name in named)
        more = f" and {count - len(named)} more" if count > len(named) else ""
        return f"Measured on {self.images - count} of {some(self.images, 'image')}; {unreadable(count)}: {names}{more}"

    def renamed(self, names: Mapping[str, str]) -> "EvaluationFile":
        """The same, with other names of the data set and of the models; of models that are called alike, numbered."""
        models = list(dict.fromkeys((*(row.model for row in self.rows), *self.trained_on, *self.part_lost)))
        told = distinct(names.get(model, model) for model in models)
        called = {model: Given(name) if model in names else name for model, name in zip(models, told, strict=True)}
        inside = [tuple(name.removeprefix(f"{self.data}/") for name in row.unreadable) for row in self.rows]
        rows = tuple(
            row.model_copy(update={"model": called[row.model], "unreadable": unread})
            for row, unread in zip(self.rows, inside, strict=True)
        )
        seen = {
            name: tuple(called[model] for model in models)
            for name, models in (("trained_on", self.trained_on), ("part_lost", self.part_lost))
        }
        return self.model_copy(update={"data": names.get(self.data, self.data), "rows": rows, **seen})


def titles(models: Iterable[str]) -> dict[str, str]:
    """What models are called: their files without the folders before them, but with those that tell two apart; names
    that were given stay as they are.

    runs/wide/best.safetensors beside runs/narrow/best.safetensors is wide/best.safetensors.
    """
    parts = {model: (str(model),) if isinstance(model, Given) else Path(model).parts for model in models}

    def title(model: str) -> str:
        if isinstance(model, Given):
            return model
        own, others = parts[model], [each for name, each in parts.items() if name != model]
        ends = (own[-length:] for length in range(1, len(own) + 1))
        return next((str(Path(*end)) for end in ends if all(end != each[-len(end) :] for each in others)), model)

    return {model: title(model) for model in parts}


def read_evaluation(file: Path) -> EvaluationFile:
    """Read a file of `tcnn evaluate --json`; raises `RequestError` with one line."""
    try:
        return EvaluationFile.model_validate_json(file.read_bytes())
    except OSError as error:
        raise RequestError(
            f"{file}: expected what `tcnn evaluate --json` prints, found no readable file ({error.strerror})"
        ) from error
    except ValidationError as error:
        raise RequestError(
            f"{file}: expected what `tcnn evaluate --json` prints ({error.errors()[0]['msg'].lower()})"
        ) from error


def improved(rows: Sequence[EvaluatedRow]) -> list[tuple[EvaluatedRow, EvaluatedRow]]:
    """Pairs of rows to compare: the first model with corruption results, and each later one, at every size of both."""
    corrupted = [row for row in rows if row.corruptions]
    first = {row.size: row for row in corrupted if row.model == corrupted[0].model}
    return [(first[row.size], row) for row in corrupted if row.model != corrupted[0].model and row.size in first]
