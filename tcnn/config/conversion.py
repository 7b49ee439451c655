"""Settings of conversion (`ConversionConfig`)."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from tcnn.config.base import Frozen
from tcnn.config.values import MOST, SideOrSize, Temperature, setting

HARD_TEMPERATURE = 1 / 46
"""Temperature τ at which the layer equals the convolution: exp(−46) ≈ 1e-20 vanishes beside 1 in float64."""
OF_TRAINING = ("anneal_steps", "anneal_end")
"""Arguments of a T-CNN of timm's registry that no file keeps: with them it raises its own τ."""
MOST_HEADS = 1024
"""Largest number of content heads of a layer, and largest shift with an embedding of its own."""
MOST_TARGET = 20_000
"""Characters of a target: room for the names of all convolutions of any timm model."""
MOST_SETS, MOST_WIDE = 500, 20
"""Sets of characters (`[…]`) of a target, and ranges in them if it goes beyond Latin-1: nothing else takes `re` long to
compile. A range of all of Unicode takes it milliseconds."""
CONTENT = r"(?:global|(window|pooled):([1-9][0-9]{0,5}))(,unpadded)?"
"""Regular expression of a content scope: `global`, `window:W` or `pooled:R`, W and R from 1 to 999999."""

PositionKind = Literal["isotropic", "quadratic", "relative", "relative-content"]
"""Kind of positional attention (Cordonnier et al. 2020): by distance from a centre, by a Gaussian of any shape, or by
learned embeddings of row and column shifts, which a query's content may look for as well."""


class ConversionConfig(Frozen):
    """How a CNN is converted into a T-CNN; the defaults are those of `tcnn convert`."""

    stage: int = Field(
        default=-1,
        description="Index of the stage to convert, as in timm's `out_indices`; −1 is the last.",
    )
    target: str | None = Field(
        default=None,
        max_length=MOST_TARGET,
        description="Regular expression that must match the full dotted name of a convolution; replaces `stage`.",
    )
    stride: Literal["keep", "remove", "dilate"] = Field(
        default="keep",
        description="`keep` is equivalent to the CNN. `remove` runs the stage at stride 1, as the paper "
        "does: every filter then sees a smaller part of the image. `dilate` also runs it at stride 1, but "
        "dilates the later convolutions of the stage, so that the pixels of the original map keep the CNN's "
        "values.",
    )
    temperature: Temperature = Field(
        default=HARD_TEMPERATURE,
        description="Temperature τ, dimensionless: 1/46 is the CNN, 1 is where the paper starts.",
    )
    position: PositionKind = Field(
        default="isotropic",
        description="How heads attend by position; the model is equivalent to the CNN with any of them. "
        "`isotropic`: by distance from a centre, as in the paper. `quadratic`: by a Gaussian with two widths "
        "and a rotation. `relative`: by learned embeddings of row and column shifts. `relative-content`: by "
        "these and the query's content.",
    )
    position_reach: int | None = Field(
        default=None,
        ge=1,
        le=MOST_HEADS,
        description="Largest shift in pixels with a relative embedding of its own; larger shifts share "
        "the last one. Default: 15, or one more than the farthest tap.",
    )
    content_heads: int = Field(
        default=0,
        ge=0,
        le=MOST_HEADS,
        description="Extra heads without a positional part. Their output weights start at 0, so that the "
        "model is equivalent to the CNN, and are trained from the first step.",
    )
    query_key: Literal["normal", "mimetic"] = Field(
        default="normal",
        description="Initialisation of query and key weights: `normal`, with a standard deviation of "
        "0.02, or `mimetic`, so that pixels attend to similar ones as in trained transformers (Trockman and "
        "Kolter 2023).",
    )
    head_dim: int | None = Field(
        default=None,
        ge=1,
        le=MOST,
        description="Channels of one head's queries and keys. Default: C_in // K, rounded down to a multiple of 8.",
    )
    content: str = Field(
        default="global",
        description="What a query's content attention sees: `global`, every pixel; `window:W`, the pixels "
        "of its own W×W window; `pooled:R`, means on an R×R grid. The last two need memory linear in the "
        "number of pixels. Append `,unpadded` to leave the padding out.",
        examples=["global", "window:14", "pooled:7", "global,unpadded"],
        json_schema_extra={"pattern": f"^({CONTENT})$"},
    )
    seed: int = Field(
        default=0,
        ge=0,
        lt=2**63,
        description="Seed of the query and key weights, the only random ones.",
    )
    input_size: SideOrSize = setting(
        default=None,
        description="(height, width) in pixels at which the model is traced. Default: the model's own.",
    )

    @field_validator("content")
    @classmethod
    def _is_a_scope(cls, value: str) -> str:
        import re

        if re.fullmatch(CONTENT, value) is None:
            raise ValueError(
                "expected global, or window or pooled with a size from 1 to 999999, as in window:14, with ,unpadded "
                "behind it or not"
            )
        return value

    @field_validator("position_reach")
    @classmethod
    def _has_embeddings(cls, value: int | None, info: ValidationInfo) -> int | None:
        position = info.data.get("position", "relative")
        if value is not None and not position.startswith("relative"):
            raise ValueError(f"position {position} has no embeddings; give it with relative or relative-content")
        return value

    @field_validator("target")
    @classmethod
    def _compiles(cls, value: str | None, info: ValidationInfo) -> str | None:
        import re

        if value is None:
            return value
        if (stage := info.data.get("stage", -1)) != -1:
            raise ValueError(f"names the convolutions, so that stage {stage} has no effect; give one of the two")
        if (sets := value.count("[")) > MOST_SETS:
            raise ValueError(f"expected at most {MOST_SETS} sets of characters ([…]), found {sets}")
        if (ranges := value.count("-")) > MOST_WIDE and re.search(r"[^\x00-\xff]|\\[uUN]", value):
            raise ValueError(
                f"expected at most {MOST_WIDE} ranges (-) in an expression with characters beyond Latin-1, "
                f"found {ranges}"
            )
        try:
            re.compile(value)
        except RecursionError:
            raise ValueError("not a regular expression that can be read: its groups are nested too deeply") from None
        except (re.error, OverflowError) as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return value


def as_kept(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a conversion from a file or a queue, where releases until 0.2.0 kept both a target and a stage.

    The stage had no effect and is left out.
    """
    return {key: value for key, value in settings.items() if key != "stage" or settings.get("target") is None}
