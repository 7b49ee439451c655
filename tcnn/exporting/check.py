"""Check an exported file against the model: run both on inputs of several sizes and compare the outputs.

PyTorch runs the attention in chunks and the export holds it all at once, so the two are different programs.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tcnn.errors import VerificationError, one_line, shorten
from tcnn.exporting.interface import Axis, ExportAxis, ExportCheck
from tcnn.layers.backends.selection import use_backend
from tcnn.models.difference import output_errors, top1_agreement
from tcnn.models.outputs import Outputs, separate
from tcnn.models.precision import exact_arithmetic
from tcnn.models.randomise import noise
from tcnn.models.running import failure, in_dtype, logits_of, refuses_size
from tcnn.models.trace import evaluating

Runner = Callable[[Tensor], object]
"""Runs an exported file: images (B, C, H, W) to its outputs, in the model's output structure."""
Shape = tuple[int, int, int, int]
STEPS = (2, 4, 8, 16, 32)
"""Sides are multiples of one of these where a model does not run on any: of patches that become channels, say."""
SEED = 0
"""Of the noise on which the file is compared with the model."""


class ShapeRefused(VerificationError):
    """The exported file does not run on a shape on which the model does."""


def shapes_to_try(axes: Sequence[ExportAxis], channels: int) -> list[Shape]:
    """Input shapes for the check: the example, and two more with other sizes where axes are free."""
    by_name = {axis.name: axis for axis in axes}

    def size(axis: Axis, wanted: int) -> int:
        found = by_name[axis]
        return max(wanted, found.minimum) if found.dynamic else found.size

    height, width = by_name["height"].size, by_name["width"].size
    tries = [
        (by_name["batch"].size, channels, height, width),
        (size("batch", 1), channels, size("height", height * 3 // 4 | 1), size("width", width + 5)),
        (size("batch", 3), channels, size("height", height + 2), size("width", width * 5 // 8 | 1)),
    ]
    return list(dict.fromkeys(tries))


def reference(model: nn.Module, batch: Tensor, dtype: torch.dtype = torch.float32) -> Outputs:
    """Outputs of the model in PyTorch, (B, …); the attention runs, never a convolution in its place."""
    same = in_dtype(model, dtype)
    with torch.no_grad(), exact_arithmetic(), use_backend("fused"), evaluating(same):
        return logits_of(same, batch, dtype)


def compare(model: nn.Module, run: Runner, shapes: Sequence[Shape]) -> list[ExportCheck]:
    """Compare the file with the model on noise of every shape, or of one near it where the model does not run on that.

    Raises: `ShapeRefused` if the file refuses one on which the model runs.
    """
    checks = []
    for wanted in shapes:
        shape, batch, expected = _runs_on(model, wanted)
        try:
            found = separate(run(batch), len(batch))
        except Exception as error:  # onnxruntime and torch raise whatever they like
            size = "×".join(map(str, shape))
            raise ShapeRefused(
                f"the exported file does not run on {size} ({shorten(one_line(error), 160)}); nothing was written, try "
                "--fixed"
            ) from error
        same = top1_agreement(expected, found)
        checks.append(ExportCheck(shape=shape, error=output_errors(expected, found), top1_agreement=same))
    return checks


def _runs_on(model: nn.Module, wanted: Shape) -> tuple[Shape, Tensor, Outputs]:
    """The wanted shape, or with larger sides that are multiples of a step; noise of it, and the model's outputs.

    Raises what says so if the model fails for another reason than the size.
    """
    for step in (1, *STEPS):
        shape = _rounded(wanted, step)
        batch = noise(shape, SEED)
        try:
            return shape, batch, reference(model, batch)
        except Exception as error:
            if not refuses_size(error):
                raise failure(model, shape[1:], error, "try --fixed") from error
            if step == STEPS[-1]:
                raise VerificationError(
                    f"{type(model).__name__} does not run on an image of {'×'.join(map(str, wanted[1:]))} nor of sides "
                    f"that are multiples of {step} ({one_line(error)}); nothing was written, try --fixed"
                ) from error
    raise AssertionError("the last step returns or raises")


def takes_other_sizes(model: nn.Module, example: Tensor) -> bool:
    """Whether a model runs on another size than the example's; one that flattens its map for a linear layer does not.

    Raises what says so if the model fails for another reason than the size.
    """
    channels, height, width = example.shape[1:]
    for step in (1, *STEPS):
        shape = _rounded((1, channels, height * 3 // 4 | 1, width + 5), step)
        try:
            reference(model, torch.zeros(shape, device="cpu"))
        except Exception as error:
            if not refuses_size(error):
                raise failure(model, shape[1:], error, "try --fixed") from error
        else:
            return True
    return False


def multiples(shapes: Sequence[Shape], checks: Sequence[ExportCheck]) -> str | None:
    """A note where the model did not run on every shape that was to be tried, or None."""
    found = [check.shape for check in checks]
    step = next((step for step in (1, *STEPS) if [_rounded(shape, step) for shape in shapes] == found), None)
    if step is None:  # no one number: sides that are too small, say
        sizes = ", ".join(f"{height}×{width}" for _, _, height, width in found)
        return f"the model does not take every height and width; the file was checked at {sizes}"
    return None if step == 1 else f"height and width must be multiples of {step}, as the model takes no others"


def _rounded(shape: Shape, step: int) -> Shape:
    """With the next larger sides that are multiples of a step."""
    return (*shape[:2], -(-shape[2] // step) * step, -(-shape[3] // step) * step)


def check_tolerance(model: nn.Module, checks: Sequence[ExportCheck], tolerance: float) -> None:
    """Raise `VerificationError` unless every check is within the tolerance.

    The message states how far the model's own float32 is from float64: a very deep network cannot be met more closely.
    """
    worst = max(checks, key=lambda check: check.error.worst)
    if worst.error.worst <= tolerance:
        return
    batch = noise(worst.shape, SEED)
    rounding = output_errors(reference(model, batch, torch.float64), reference(model, batch)).worst
    raise VerificationError(
        f"the exported file differs from PyTorch by {worst.error.worst:.1e}{worst.error.where} on "
        f"{'×'.join(map(str, worst.shape))}, expected at most {tolerance:.0e} (the model's own rounding is "
        f"{rounding:.1e}); nothing was written"
    )
