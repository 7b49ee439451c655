"""What a comparison's numbers mean: notes on outputs of other shapes, a source that is not finite, or that keeps its
stride, and what rounding allows."""

from collections.abc import Collection, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tcnn.config import VerificationConfig
from tcnn.layers.filters import pair
from tcnn.models.difference import is_nan, output_errors
from tcnn.models.outputs import Outputs, dtypes
from tcnn.models.precision import filters_are_rounded
from tcnn.models.running import in_dtype, logits_of
from tcnn.models.trace import evaluating
from tcnn.verification.report import DtypePass

Pass = TypeVar("Pass", bound=DtypePass)
ROUNDING = 0.01
"""Up to where a difference of float32 and float64 is rounding; beyond, either draws other random numbers, say."""


def tolerance_of(
    dtype: torch.dtype, source: nn.Module, converted: nn.Module, outputs: Outputs, config: VerificationConfig
) -> tuple[float, str | None]:
    """The relative error allowed in this dtype, and a note where that is not its own."""
    if dtype != torch.float64:
        return config.tolerance_float32, None
    if not dtypes(outputs).isdisjoint((torch.float32, torch.complex64)):
        return config.tolerance_float32, "the model returns float32, so its tolerance applies"
    if filters_are_rounded(source, converted):
        return config.tolerance_float32, "standardised filters are stored rounded to float32, so its tolerance applies"
    return config.tolerance_float64, None


def unsteady(model: nn.Module, batch: Tensor, expected: Outputs, bound: float, dtype: torch.dtype) -> str | None:
    """What to say of a model that gives others than the expected outputs, its own, when it runs again; else None.

    Its random numbers or its state are then such as `same_start` does not know.

    Args:
        bound: the largest relative error that is none.
    """
    own = in_dtype(model, dtype)
    with evaluating(own):
        error = output_errors(expected, logits_of(own, batch, dtype)).worst
    if not bound < error < torch.inf:  # what is NaN everywhere equals nothing, itself neither
        return None
    return (
        f"{type(model).__name__} differs by {error:.1e} from itself when it runs again: it draws random numbers from a "
        "generator of its own, or keeps what it has seen elsewhere than in buffers and attributes"
    )


def told_shapes(what: str, told: str | None) -> list[str]:
    """What to say where two outputs have different shapes, of one image."""
    return [] if told is None else [f"shapes differ: {what}{told}"]


def never_ran(names: Iterable[str], in_source: Collection[str], in_converted: Collection[str]) -> str | None:
    """A note on layers that were not called, by either model or by the converted one alone; None if all were."""
    if missing := sorted(set(names).difference(in_source)):
        return f"never ran: {', '.join(missing)}"
    if missing := sorted(set(names).difference(in_converted)):
        return f"never ran in the converted model, which calls something else in its place: {', '.join(missing)}"
    return None


def not_finite(source: nn.Module, outputs: Outputs) -> str | None:
    """A note on a source whose weights are not all finite, or of whose outputs one is NaN everywhere; else None.

    Nothing can be compared with these.
    """
    broken = next((name for name, weight in source.named_parameters() if not weight.isfinite().all()), None)
    if broken is not None:
        return f"{broken} of the source holds NaN or infinite weights: nothing can be compared"
    filled = next((one for one in outputs if is_nan(one.rows)), None)
    if filled is not None:
        return f"the source's output {filled.name}".rstrip() + " is NaN everywhere: nothing can be compared"
    return None


def with_stride(result: DtypePass, source: nn.Module, converted: nn.Module) -> DtypePass:
    """The result, whose note says so where the source still has the stride that the conversion took from it."""
    report: Any = getattr(converted, "conversion_report", None)
    modules = dict(source.named_modules())
    removed = getattr(report, "strides_removed", ())
    kept = [name for name in removed if max(pair(getattr(modules.get(name), "stride", 1))) > 1]
    if not kept:
        return result
    way = report.config.stride
    note = (
        f"the model was converted with stride={way} and the source has its stride ({kept[0]}): compare it with "
        f'tcnn.without_stride(source, stride="{way}"), with the other options of the conversion'
    )
    return result.model_copy(update={"note": note if result.note is None else f"{result.note}; {note}"})


def allow_for_rounding(single: Pass, double: DtypePass, rounding: float) -> Pass:
    """Raise the tolerance of the logits where the source's own float32 rounding exceeds it, as in very deep networks.

    Only where float64 passes and every layer is within the float32 tolerance, the logits may differ by twice the
    difference of the source's own float32 and float64 logits.
    """
    layers_hold = all(layer.worst <= single.tolerance for layer in single.layers)
    if single.passed or not (double.passed and layers_hold and single.note is None):
        return single
    if not (rounding <= ROUNDING and single.logits.worst <= 2 * rounding):
        return single
    note = f"within twice the source's own rounding, {rounding:.1e} here; every layer is within {single.tolerance:.0e}"
    return single.model_copy(update={"passed": True, "note": note})
