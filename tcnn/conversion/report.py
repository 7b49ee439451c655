"""What a conversion did and how well it was verified: the records that go to the terminal, the API and the file."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from tcnn.config import ConversionConfig
from tcnn.errors import RequestError


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


STANDARDISATION_ENDED = "weight standardisation ended: the standardised filter was loaded"
"""The note of a layer whose convolution standardised its weight."""


class FoldRecord(_Record):
    """What `tcnn.fold` made of a layer: of its heads, in their order, and of W_val, which only groups keep apart."""

    heads: tuple[Literal["convolution", "content", "attention", "dropped"], ...]
    value: bool


class LayerReport(_Record):
    """One replacement."""

    name: str
    source: str
    in_channels: int
    out_channels: int
    kernel_size: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    padding: tuple[int, int, int, int] | str
    padding_mode: str
    bias: bool
    heads: int
    head_dim: int
    content: str = "global"
    content_heads: int = 0
    """How many of the heads, the last, have no positional part."""
    parameters_before: int
    parameters_after: int
    tied: dict[str, str] = {}
    """Which of its parameters is one with which other of the model."""
    note: str | None = None
    fold: FoldRecord | None = None


class SkippedLayer(_Record):
    name: str
    reason: str


class ConversionReport(_Record):
    """One conversion: enough to rebuild the structure, and what a person wants to know of it."""

    base_model: str
    model_args: dict[str, object] = {}
    config: ConversionConfig
    stage: str
    layers: tuple[LayerReport, ...]
    skipped: tuple[SkippedLayer, ...] = ()
    strides_removed: tuple[str, ...] = ()
    dilated: dict[str, tuple[int, int]] = {}
    """By how much, along rows and columns, ``stride="dilate"`` spread the kernels of which layers."""
    parameters_before: int
    parameters_after: int

    @property
    def folded(self) -> bool:
        """Whether some layer is part convolution and part attention: it was folded, and not to the end."""
        return any(layer.fold for layer in self.layers)

    @property
    def standardised(self) -> bool:
        """Whether a weight-standardised filter was baked in (and so rounded to the weight's dtype)."""
        return any(STANDARDISATION_ENDED in (layer.note or "") for layer in self.layers)


def refuse_folded(report: ConversionReport, name: str, verb: str) -> None:
    """Raise `RequestError` for a model that is only partly attention: folding is the last step before inference."""
    if report.folded:
        raise RequestError(f"{name}: was folded, for inference only; {verb} the checkpoint that it was folded from")


class ErrorStats(_Record):
    """How far b is from a: absolute error, error relative to a in L2 and to a's largest value, cosine."""

    max_abs: float
    relative: float
    max_relative: float
    cosine: float

    @property
    def worst(self) -> float:
        return max(self.relative, self.max_relative)


class LayerError(_Record):
    name: str
    random: ErrorStats
    activation: ErrorStats | None

    @property
    def worst(self) -> float:
        return max(stats.worst for stats in (self.random, self.activation) if stats is not None)


class DtypePass(_Record):
    """Source against converted model in one dtype."""

    dtype: str
    tolerance: float
    logits: ErrorStats
    top1_agreement: float
    layers: tuple[LayerError, ...]
    passed: bool
    note: str | None = None


class AsRun(DtypePass):
    """What users run against the attention that was verified, both at the model's own temperatures.

    `backend` is how the layers were computed: `auto`, unless `TCNN_ATTENTION` says otherwise.
    """

    backend: str


class Drift(_Record):
    """What the same weights do at another temperature, against the source.

    Where the layers differ, `temperature` is the largest and `lowest` the smallest.
    """

    temperature: float
    lowest: float | None = None
    logits: ErrorStats
    top1_agreement: float

    @property
    def range(self) -> str:
        """The temperature, or from which to which."""
        return _range(self.temperature if self.lowest is None else self.lowest, self.temperature)


class VerificationReport(_Record):
    """The verdict: equivalence at `temperature`, the hard limit, and drift at τ = 1, the paper's start.

    `as_run` is the comparison of what users run with the attention; `passed` holds for both. `temperatures` are those
    at which the layers stand; `written` is the drift there when that is neither of the two. Files of older versions
    have neither `as_run` nor `temperatures`.
    """

    passed: bool
    temperature: float
    images: str
    seed: int
    statistics_randomised: bool
    passes: tuple[DtypePass, ...]
    as_run: AsRun | None = None
    temperatures: dict[str, float] = {}
    drift: Drift
    written: Drift | None = None

    @property
    def range(self) -> str:
        """The temperature at which the layers stand, or from which to which."""
        own = self.temperatures.values()
        return _range(min(own), max(own)) if own else "unknown"

    def failure(self) -> str | None:
        """One line that names the worst offender, or None when everything passed."""
        for result in self.passes:
            if not result.passed:
                return (
                    f"equivalence error {result.logits.worst:.2e} in {result.dtype}, expected at most "
                    f"{result.tolerance:.0e} at temperature {self.temperature:.4g}{_worst(result)}"
                )
        if self.as_run is not None and not self.as_run.passed:
            return (
                f"what is run ({self.as_run.backend}) differs from the attention by {self.as_run.logits.worst:.2e} in "
                f"{self.as_run.dtype}, expected at most {self.as_run.tolerance:.0e}{_worst(self.as_run)}"
            )
        return None


def _range(lowest: float, highest: float) -> str:
    return f"{lowest:.4g}" if lowest == highest else f"{lowest:.4g} to {highest:.4g}"


def _worst(result: DtypePass) -> str:
    layer = max(result.layers, key=lambda layer: layer.random.worst, default=None)
    return f"; worst layer {layer.name} at {layer.random.worst:.2e}" if layer else ""
