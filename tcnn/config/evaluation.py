"""Settings of verification (`VerificationConfig`) and of evaluation (`EvaluationConfig`).

Each is one object for Python, command line, file and HTTP body.
"""

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field, field_validator

from tcnn.config.base import Frozen
from tcnn.config.values import MOST, NEVER, Amp, Device, SideOrSize, Sizes, setting
from tcnn.errors import RequestError
from tcnn.processes import MOST_WORKERS

SEVERITIES = (1, 2, 3, 4, 5)
ALEXNET = "alexnet"
"""The baseline whose errors on ImageNet-C are published."""


class VerificationConfig(Frozen):
    """How source and converted model are compared."""

    tolerance_float32: float = Field(
        default=1e-5, gt=0, allow_inf_nan=False, description="Largest relative error allowed in float32."
    )
    tolerance_float64: float = Field(
        default=1e-10, gt=0, allow_inf_nan=False, description="Largest relative error allowed in float64."
    )
    float64: bool = Field(default=True, description="Also compare in float64.")
    batch_size: int = Field(default=2, ge=1, le=MOST, description="Images per comparison when none are given.")
    input_size: SideOrSize = setting(default=None, description="(height, width) in pixels. Default: the model's own.")
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of random images and statistics.")


class EvaluationConfig(Frozen):
    """How models are evaluated and compared; the defaults are those of `tcnn evaluate`."""

    split: str | None = Field(
        default=None,
        description="Split of the data set, if it has splits. Default: `val`; where there is none, what a model's "
        "training has held out of `train`.",
    )
    layout: Literal["auto", "plain", "imagenet-c", "imagenet-a", "imagenet-r"] = Field(
        default="auto", description="`auto` recognises ImageNet-C by its folders, ImageNet-A and -R by their classes."
    )
    sizes: Sizes = setting(
        default=(), description="(height, width) in pixels, or the side of a square. Empty: each model's own size."
    )
    crop_pct: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Fraction of the resized image that the crop keeps. Default: the model's own.",
    )
    corruptions: tuple[str, ...] = Field(
        default=(),
        description="ImageNet-C corruptions to apply on the fly, or to read from an ImageNet-C folder (empty: all).",
    )
    severities: tuple[int, ...] = Field(
        default=SEVERITIES, min_length=1, description="Severities of the corruptions, 1 (weak) to 5 (strong)."
    )
    baseline: str | None = Field(
        default=None,
        description="Baseline of the mean corruption error, mCE: `alexnet` or one of the models. Default: "
        "AlexNet if its errors are known, else the first of several models.",
    )
    batch_size: int = Field(default=64, ge=1, le=MOST, description="Images per forward pass.")
    workers: int = Field(
        default=0, ge=0, le=MOST_WORKERS, description="Processes that load images; 0 loads them in the main process."
    )
    device: Device = setting(default="auto", description="Device; `auto` is a GPU if there is one.")
    amp: Amp = setting(default="float32", description="Autocast dtype.")
    channels_last: bool = Field(default=False, description="Use channels-last memory format.")
    limit: int | None = Field(
        default=None, ge=1, le=NEVER, description="Use at most this many images, the first of every class in turn."
    )
    per_class: bool = Field(default=False, description="Report the accuracy of every class, and the confusions.")
    examples: int = Field(
        default=0, ge=0, le=100,
        description="List up to this many images of each kind: those that a model gets wrong, and those "
        "on which it differs from the first model.",
    )  # fmt: skip
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of the corruptions.")

    @field_validator("sizes", mode="before")
    @classmethod
    def _squares(cls, sizes: Any) -> Any:
        if not isinstance(sizes, list | tuple):
            return sizes
        return tuple((size, size) if isinstance(size, int) else size for size in sizes)

    @field_validator("severities")
    @classmethod
    def _known(cls, severities: tuple[int, ...]) -> tuple[int, ...]:
        if any(severity not in SEVERITIES for severity in severities):
            raise ValueError("expected severities from 1 to 5")
        return tuple(sorted(set(severities)))

    def refuse_without_effect(self, given: Iterable[str], stored: bool) -> None:
        """Raise `RequestError` for a setting that was given and has no effect: one of corruptions, and there are none.

        Args:
            given: names of the settings; one with the value that it has anyway is let pass.
            stored: whether the images may be corrupted as they are, as ImageNet-C's, where `layout` does not tell.
        """
        stored = self.layout == "imagenet-c" or (self.layout == "auto" and stored)
        if self.corruptions or stored:
            return
        for name in ("severities", "baseline", "seed"):
            if name in given and getattr(self, name) != type(self).model_fields[name].default:
                raise RequestError(f"{name}: has no effect, because nothing is corrupted; give corruptions as well")
