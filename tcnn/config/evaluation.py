"""Settings of verification (`VerificationConfig`) and of evaluation (`EvaluationConfig`).

Each is one object for Python, command line, file and HTTP body.
"""

from typing import Any, Literal

from pydantic import Field, field_validator

from tcnn.config.base import MOST, NEVER, Frozen, SideOrSize, Size
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
    input_size: SideOrSize | None = Field(
        default=None, description="(height, width) in pixels; default the model's own."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of random images and statistics.")


class EvaluationConfig(Frozen):
    """How models are evaluated and compared; the defaults are those of `tcnn evaluate`."""

    split: str = Field(default="val", description="Which part of the data set, where it has parts.")
    layout: Literal["auto", "plain", "imagenet-c", "imagenet-a", "imagenet-r"] = Field(
        default="auto", description="`auto` knows ImageNet-C by its folders, ImageNet-A and -R by their classes."
    )
    sizes: tuple[Size, ...] = Field(
        default=(), description="(height, width) in pixels, or the side of a square; empty: each model's own size."
    )
    crop_pct: float | None = Field(
        default=None, gt=0, le=1, description="The crop's share of the resized image; default the model's own."
    )
    corruptions: tuple[str, ...] = Field(
        default=(),
        description="ImageNet-C corruptions to apply on the fly, or to read of an ImageNet-C folder (empty: all).",
    )
    severities: tuple[int, ...] = Field(default=SEVERITIES, min_length=1, description="1 (weak) to 5 (strong).")
    baseline: str | None = Field(
        default=None,
        description="Whose errors mCE is relative to: `alexnet` or one of the models. Default: AlexNet where its "
        "errors are known, else the first of several models.",
    )
    batch_size: int = Field(default=64, ge=1, le=MOST, description="Images of one forward pass.")
    workers: int = Field(
        default=0, ge=0, le=MOST_WORKERS, description="Processes that load images; 0 loads in the main one."
    )
    device: str = Field(default="auto", description="Where the models run; `auto` is a GPU if there is one.")
    amp: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="The dtype that autocast computes in."
    )
    channels_last: bool = Field(default=False, description="Images in channels-last memory order.")
    limit: int | None = Field(
        default=None, ge=1, le=NEVER, description="So many images only, the first of every class in turn."
    )
    per_class: bool = Field(default=False, description="Keep the result of every class, and what was taken for what.")
    examples: int = Field(
        default=0, ge=0, le=100,
        description="Name so many images that a model gets wrong, or on which it departs from the first, of each kind.",
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
