"""Verification report: equivalence errors, tolerances and verdict, for the terminal, the API and the file."""

from collections.abc import Iterator

from pydantic import Field

from tcnn.config.base import ErrorStats, Record
from tcnn.formatting import Printed, share

EMPTY = "the outputs hold no number for any image: only what is compared layer by layer tells of errors"
"""The note where nothing could be compared end to end, as with a detector that finds nothing in noise."""

FINDS = "tcnn.explain finds where (`tcnn verify --explain`)"
"""What to do where no layer is out of tolerance, and the outputs are."""


class LayerError(Record):
    """Errors of one layer: on random inputs and on the activations that reach it."""

    name: str
    random: ErrorStats
    activation: ErrorStats | None

    @property
    def worst(self) -> float:
        """The largest relative error of the layer."""
        return max(stats.worst for stats in (self.random, self.activation) if stats is not None)


class DtypePass(Record):
    """Errors of the converted model against the source in one dtype."""

    dtype: str
    tolerance: float
    logits: ErrorStats
    top1_agreement: float
    layers: tuple[LayerError, ...]
    passed: bool
    note: str | None = None


class AsRun(DtypePass):
    """Errors of the model as it is run against its attention, both at the model's temperatures.

    `backend` is how the layers were computed: `auto`, unless `TCNN_ATTENTION` says otherwise.
    """

    backend: str


class Drift(Record):
    """Drift: the error of the same weights at another temperature, against the source.

    Where the layers differ, `temperature` is the largest and `lowest` the smallest.
    """

    temperature: float
    lowest: float | None = None
    logits: ErrorStats
    top1_agreement: float
    note: str | None = None
    """Why the error is no number: the outputs have other shapes, or hold no number; in words."""

    @property
    def range(self) -> str:
        """The temperature, or its range over the layers, as text."""
        return _range(self.temperature if self.lowest is None else self.lowest, self.temperature)


class VerificationReport(Printed, Record):
    """Result of verification: equivalence at `temperature`, the hard limit, and drift at τ = 1.

    `as_run` compares the model as it is run with its attention; `passed` holds for both. `temperatures` are those of
    the layers; `written` is the drift there when that is neither of the two. Files of older versions have neither
    `as_run` nor `temperatures`.
    """

    passed: bool
    temperature: float
    images: str
    seed: int
    statistics_randomised: bool
    passes: tuple[DtypePass, ...]
    as_run: AsRun | None = None
    temperatures: dict[str, float] = Field(default={})
    drift: Drift
    written: Drift | None = None

    @property
    def range(self) -> str:
        """The temperature of the layers, or its range over them, as text."""
        own = self.temperatures.values()
        return _range(min(own), max(own)) if own else "unknown"

    def __str__(self) -> str:
        """What was compared and how far it lies apart, in a few lines: those of `tcnn verify`."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        """The equivalence by dtype, then the drift; a comparison that could not have failed is marked."""
        for result in self.passes:
            yield (
                f"{_verdict(result.passed)} in {result.dtype}: relative error {result.logits.relative:.1e}"
                f"{result.logits.where}, largest {result.logits.max_abs:.1e}, "
                f"top-1 agreement {result.top1_agreement:.0%} (τ = {self.temperature:.4g}, {self.images})"
            )
            if result.note:
                yield f"  {result.note}"
        if self.as_run is not None:
            yield (
                f"{_verdict(self.as_run.passed)} as run in {self.as_run.dtype}: relative error "
                f"{self.as_run.logits.relative:.1e}{self.as_run.logits.where} from the attention "
                f"(τ = {self.range}, {self.as_run.backend})"
            )
            if self.as_run.note:
                yield f"  {self.as_run.note}"
        for drift in filter(None, (self.drift, self.written)):
            of = "the logits'" if drift.logits.output is None else f"{drift.logits.output}'s"
            part = f"{share(drift.logits.relative)} of {of} norm"
            yield f"drift at τ = {drift.range}: {drift.note or part}"
        if self.blind not in (None, EMPTY):  # which is a note already
            yield f"  {self.blind}"

    @property
    def blind(self) -> str | None:
        """Why the logits could not have shown an error, or None: they are the same whatever the layers compute."""
        if EMPTY in (self.passes[0].note or ""):
            return EMPTY
        if self.drift.logits.max_abs == 0:
            return "the converted layers do not reach the logits: their weights, or a scale behind them, are zero"
        if self.drift.logits.worst <= self.passes[0].tolerance:
            return (
                "the converted layers hardly reach the logits, which are within the tolerance even at τ = 1: a scale "
                "behind them is nearly zero, and only what is compared layer by layer tells of errors"
            )
        return None

    def failure(self) -> str | None:
        """One line that names the largest error out of tolerance, or None when everything passed."""
        for result in self.passes:
            if not result.passed:
                return (
                    f"equivalence error {result.logits.worst:.2e}{result.logits.where} in {result.dtype}, expected at "
                    f"most {result.tolerance:.0e} at temperature {self.temperature:.4g}{_worst(result)}{_note(result)}"
                )
        if self.as_run is not None and not self.as_run.passed:
            return (
                f"what is run ({self.as_run.backend}) differs from the attention by {self.as_run.logits.worst:.2e}"
                f"{self.as_run.logits.where} in {self.as_run.dtype}, expected at most "
                f"{self.as_run.tolerance:.0e}{_worst(self.as_run)}{_note(self.as_run)}"
            )
        return None


def _verdict(passed: bool) -> str:
    return "equal" if passed else "NOT EQUAL"


def _range(lowest: float, highest: float) -> str:
    return f"{lowest:.4g}" if lowest == highest else f"{lowest:.4g} to {highest:.4g}"


def _note(result: DtypePass) -> str:
    return f"; {result.note}" if result.note else ""


def _worst(result: DtypePass) -> str:
    """The layer with the largest error; where that is within the tolerance, no layer is to be suspected."""
    layer = max(result.layers, key=lambda layer: layer.worst, default=None)
    if layer is None or layer.worst > result.tolerance:
        return f"; worst layer {layer.name} at {layer.worst:.2e}" if layer else ""
    within = f"; every converted layer is within {result.tolerance:.0e}"
    if isinstance(result, AsRun):  # one model: there is nothing else that could differ
        return f"{within}, and their errors add up"
    return within if result.note else f"{within}, so what differs is outside of them, or adds up: {FINDS}"
