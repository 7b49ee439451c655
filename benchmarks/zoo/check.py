"""One model of timm's zoo: can it be converted, and is the conversion the same function?

First on the meta device, which costs no memory: what would be converted, and at how small an image can it be checked?
Then for real: random weights, randomised statistics, float32 and float64.
"""

import copy
import time
import traceback
from typing import NamedTuple

import timm
import torch
from timm.models import model_entrypoint
from torch import nn

import tcnn
from tcnn.config import ConversionConfig
from tcnn.conversion.report import ConversionReport
from tcnn.conversion.selection import select
from tcnn.conversion.stages import is_spatial
from tcnn.conversion.surgery import convert
from tcnn.errors import NothingToConvertError, RequestError, UnsupportedLayerError
from tcnn.layers import GPSA2d
from tcnn.models.difference import errors
from tcnn.models.trace import input_shape, trace
from tcnn.verification.report import VerificationReport
from tcnn.verification.verify import verify

SIZES = (64, 96, 128, 160, 192, 224, 256, 288, 320, 384)
SMALLEST_MAP = 4
"""Pixels a side that every converted layer must see: on a 1×1 map most taps only ever read the padding."""

VERIFIED, REFUSED, FAILED, NOT_RUN = "verified", "refused", "failed", "not run"


class Row(NamedTuple):
    """One line of zoo.csv; errors are relative, the larger of L2 and maximum."""

    name: str
    family: str
    status: str
    reason: str = ""
    layers: int | str = ""
    kernels: str = ""
    spatial_convolutions: int | str = ""
    input_size: str = ""
    parameters_before: int | str = ""
    parameters_after: int | str = ""
    error32: str = ""
    error64: str = ""
    layer32: str = ""
    layer64: str = ""
    drift: str = ""
    top1_agreement: str = ""
    seconds: str = ""
    tcnn: str = tcnn.__version__
    timm: str = timm.__version__
    torch: str = torch.__version__


class Plan(NamedTuple):
    """What would be converted, and the smallest image on which that can be seen."""

    names: tuple[str, ...]
    size: tuple[int, int]
    arguments: dict[str, object]


class TooLargeError(Exception):
    """The model does not fit into the memory limit."""


def family_of(name: str) -> str:
    """The timm module that the model comes from."""
    return model_entrypoint(name).__module__.rsplit(".", 1)[-1]


def check(name: str, memory: float = 8.0) -> Row:
    """Convert and verify one timm model; whatever happens becomes a row.

    Args:
        name: as in `timm.list_models()`.
        memory: the most GiB that the check is expected to need; a larger model is not run.
    """
    start = time.perf_counter()
    row = Row(name, family_of(name), FAILED)
    try:
        shadow = _on_meta(name)
        row = row._replace(
            spatial_convolutions=sum(is_spatial(module) for module in shadow.modules()),
            parameters_before=_count(shadow),
        )
        plan = plan_for(name, shadow)
        row = row._replace(layers=len(plan.names), input_size="×".join(map(str, plan.size)))
        row = _measure(name, shadow, plan, row, memory)
    except (NothingToConvertError, UnsupportedLayerError) as error:
        row = row._replace(status=REFUSED, reason=str(error))
    except TooLargeError as error:
        row = row._replace(status=NOT_RUN, reason=f"too large: {error}")
    except Exception as error:
        if _ran_out_of_memory(error):
            row = row._replace(status=NOT_RUN, reason="too large: memory ran out under the limit")
        else:
            traceback.print_exc()
            row = row._replace(status=FAILED, reason=f"{type(error).__name__}: {' '.join(str(error).split())}")
    return row._replace(seconds=f"{time.perf_counter() - start:.1f}")


def plan_for(name: str, shadow: nn.Module) -> Plan:
    """The smallest size at which the same layers are selected as at the model's own, each on a map of 4×4 or more.

    Raises what the selection raises when there is nothing to convert.
    """
    own = input_shape(shadow)[1:]
    names, smallest = _selected(shadow, own)
    config = getattr(shadow, "pretrained_cfg", None) or {}
    least = min((config.get("min_input_size") or (3, 0, 0))[-2:])
    # A map shrinks in proportion to the image; rounding up can save it one pixel, no more.
    useful = min(own) * (SMALLEST_MAP - 1) / smallest
    for side in sorted({*SIZES, least}):
        size = (side, side)
        if side < max(least, useful) or side >= min(own):
            continue
        for arguments in ({}, {"img_size": size}):
            try:
                model = _on_meta(name, **arguments) if arguments else shadow
                found, side_of_map = _selected(model, size)
            except (TypeError, RequestError):  # it takes no img_size; it does not run at this one
                continue
            if found == names and side_of_map >= SMALLEST_MAP:
                return Plan(names, size, arguments)
    return Plan(names, own, {})


def _selected(model: nn.Module, size: tuple[int, int]) -> tuple[tuple[str, ...], int]:
    """The convolutions that would be converted, and the shortest side of the maps that they read."""
    steps = trace(model, size)
    names = select(model, steps, ConversionConfig(input_size=size)).names
    sides = [min(step.input_shape[-2:]) for step in steps if step.name in names and step.input_shape]
    return names, min(sides)


def _measure(name: str, shadow: nn.Module, plan: Plan, row: Row, memory: float) -> Row:
    torch.manual_seed(0)
    needed = _gibibytes(shadow, plan)
    if needed > memory:
        raise TooLargeError(f"it needs about {needed:.0f} GiB, the limit is {memory:.0f} GiB")
    source = timm.create_model(name, pretrained=False, **plan.arguments).eval()
    converted, conversion = convert(source, input_size=plan.size)
    row = _described(row, plan, conversion)
    try:
        row = _compared(row, source, converted, plan, float64=not conversion.standardised)
    except RuntimeError as error:
        if _ran_out_of_memory(error) or _runs_in_float64(source, plan):
            raise
        row = _compared(row, source, converted, plan, float64=False)
        worst = max(_layer_error64(source, converted, layer.name, plan) for layer in conversion.layers)
        reason = f"the source itself does not run in float64 ({_line(error)}): float64 checked layer by layer only"
        status = VERIFIED if row.status == VERIFIED and worst <= 1e-10 else FAILED
        return row._replace(status=status, reason=f"{row.reason} {reason}".strip(), layer64=f"{worst:.1e}")
    if conversion.standardised and row.status == VERIFIED:
        # Standardising rounds the filter to the weights' dtype, so only a float64 source gives a float64 equivalent.
        del converted
        source.double()
        converted, _ = convert(source, input_size=plan.size)
        exact = _compared(row, source, converted, plan)
        row = row._replace(status=exact.status, reason=exact.reason, error64=exact.error64, layer64=exact.layer64)
    return row


def _compared(row: Row, source: nn.Module, converted: nn.Module, plan: Plan, float64: bool = True) -> Row:
    """The verdict with random scales and shifts, and statistics that fit them."""
    return _judged(row, verify(source, converted, randomise=True, input_size=plan.size, float64=float64))


def _described(row: Row, plan: Plan, conversion: ConversionReport) -> Row:
    assert {layer.name for layer in conversion.layers} == set(plan.names), "the meta device selected other layers"
    kernels = sorted({layer.kernel_size for layer in conversion.layers})
    # The model of a small image has a smaller position embedding than the one that the row counts.
    after = int(row.parameters_before) + conversion.parameters_after - conversion.parameters_before
    return row._replace(kernels=" ".join(f"{h}×{w}" for h, w in kernels), parameters_after=after)


def _judged(row: Row, report: VerificationReport) -> Row:
    columns: dict[str, str] = {}
    for result in report.passes:
        bits = result.dtype.removeprefix("float")
        layers = [stats.worst for layer in result.layers for stats in (layer.random, layer.activation) if stats]
        columns[f"error{bits}"] = f"{result.logits.worst:.1e}"
        columns[f"layer{bits}"] = f"{max(layers, default=float('inf')):.1e}"
    drift = report.drift.logits.relative
    failure = report.failure()
    if failure is None and not drift > 0:
        failure = "blind: the logits do not notice τ = 1, so they cannot tell whether the layers are right"
    return row._replace(
        status=FAILED if failure else VERIFIED,
        reason=failure or "",
        drift=f"{drift:.1e}",
        top1_agreement=f"{min(result.top1_agreement for result in report.passes):g}",
        **columns,
    )


def _runs_in_float64(source: nn.Module, plan: Plan) -> bool:
    twin = copy.deepcopy(source).double()
    try:
        with torch.no_grad():
            twin(torch.zeros(1, *input_shape(source, plan.size), dtype=torch.float64))
    except RuntimeError:
        return False
    return True


@torch.no_grad()
def _layer_error64(source: nn.Module, converted: nn.Module, name: str, plan: Plan) -> float:
    conv = copy.deepcopy(source.get_submodule(name)).double()
    layer = copy.deepcopy(converted.get_submodule(name)).double()
    noise = torch.randn(
        2, conv.in_channels, *(max(SMALLEST_MAP, side // 16) for side in plan.size), dtype=torch.float64
    )
    return errors(conv(noise), layer(noise)).worst


def _on_meta(name: str, **arguments: object) -> nn.Module:
    with torch.device("meta"):
        return timm.create_model(name, pretrained=False, **arguments).eval()


def _gibibytes(shadow: nn.Module, plan: Plan) -> float:
    """Source and converted model in float32, and at its peak one more of them in float64; half a GiB for the rest."""
    convolutions = [shadow.get_submodule(name) for name in plan.names]
    before = _count(shadow)
    after = before + sum(_count(GPSA2d.from_conv2d(conv)) - _count(conv) for conv in convolutions)
    return (4 * (before + after) + 8 * max(before, after)) / 2**30 + 0.5


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _ran_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "allocate memory" in str(error)


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
