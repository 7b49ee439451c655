"""Which validation images a model gets right, one by one: clean, at other sizes, and corrupted.

What does not depend on the model is done once for all arms: images are resized, cropped and corrupted as
`tcnn.evaluate` does it and kept as bytes, so that measuring costs no more than the network. N images, H × W pixels.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
import torch.nn.functional as F
from experiment import Corrupted, Experiment
from numpy.typing import NDArray
from torch import Tensor, nn

from tcnn.data.image_set import ImageSet, class_balanced
from tcnn.evaluation.evaluate import transform_for
from tcnn.files import replacing
from tcnn.folding.fold import fused
from tcnn.models.trace import input_settings

BATCH = 100


class Case(NamedTuple):
    """One pass over images."""

    kind: str
    """clean, sizes or corrupted."""
    size: tuple[int, int]
    corruption: tuple[str, int] | None = None

    @property
    def name(self) -> str:
        """As it is called in results: `clean`, `64`, `fog/3`."""
        if self.corruption:
            return "{}/{}".format(*self.corruption)
        return "clean" if self.kind == "clean" else str(self.size[0])


class Right(NamedTuple):
    """What a model made of a case: (N,) booleans, and the mean cross-entropy."""

    right: NDArray[numpy.bool_]
    loss: float


def cases(experiment: Experiment, size: tuple[int, int]) -> Iterator[Case]:
    """What an arm of a size is measured on, all clean images first."""
    yield Case("clean", size)
    for side in experiment.sizes:
        yield Case("sizes", (side, side))
    if how := experiment.corrupted:
        own = (how.size, how.size) if how.size else size
        for name in how.corruptions:
            for severity in how.severities:
                yield Case("corrupted", own, (name, severity))


def chosen(case: Case, validation: ImageSet, corrupted: Corrupted | None) -> ImageSet:
    """The images of a case: all, or for corruptions a class-balanced part, the same for all arms."""
    if case.kind != "corrupted" or corrupted is None or corrupted.images is None:
        return validation
    return class_balanced(validation, min(1.0, corrupted.images / len(validation)), 1)


def prepared(case: Case, data: ImageSet, model: nn.Module, file: Path) -> NDArray[numpy.uint8]:
    """The images of a case as they stand before they become tensors, (N, H, W, C), kept in a file for the next arm.

    Raises `UnreadableImage`: arms are compared image by image, so all must be there.
    """
    if not file.is_file():
        steps: list[Any] = transform_for(model, case.size, corruption=case.corruption).transforms
        steps = steps[: next(place for place, step in enumerate(steps) if "ToTensor" in type(step).__name__)]
        file.parent.mkdir(parents=True, exist_ok=True)
        bands = 3 if data.mode == "RGB" else 1
        with replacing(file, force=True) as temporary:
            shape = (len(data), *case.size, bands)
            pixels = numpy.lib.format.open_memmap(temporary, "w+", numpy.uint8, shape)
            for index in range(len(data)):
                image, _ = data.load(index)
                for step in steps:
                    image = step(image)
                pixels[index] = numpy.asarray(image).reshape(shape[1:])
            pixels.flush()
    return numpy.load(file, mmap_mode="r")  # type: ignore[no-any-return]


@torch.inference_mode()
def classify(
    model: nn.Module, pixels: NDArray[numpy.uint8], targets: Tensor, *, device: torch.device, amp: str,
    asked: Callable[[], None] = lambda: None,
) -> Right:  # fmt: skip
    """Every image by a model in evaluation mode.

    `amp`: float32, or the dtype that autocast computes in. `asked` is called before every batch, and may raise.
    """
    settings = input_settings(model)
    mean, std = (torch.tensor(settings[name], device=device)[:, None, None] for name in ("mean", "std"))
    right: list[Tensor] = []
    losses: list[Tensor] = []
    with fused(model.eval().to(device)), torch.autocast(device.type, getattr(torch, amp), enabled=amp != "float32"):
        for start in range(0, len(pixels), BATCH):
            asked()
            batch = torch.from_numpy(numpy.array(pixels[start : start + BATCH])).permute(0, 3, 1, 2)
            images = batch.to(device).contiguous().float().div_(255).sub_(mean).div_(std)
            logits = model(images).float()
            wanted = targets[start : start + BATCH].to(device)
            right.append((logits.argmax(1) == wanted) & logits.isfinite().all(1))
            losses.append(F.cross_entropy(logits, wanted, reduction="none"))
    return Right(torch.cat(right).cpu().numpy(), float(torch.cat(losses).double().mean()))


def packed(rights: Sequence[NDArray[numpy.bool_]]) -> NDArray[numpy.uint8]:
    """Cases × N booleans, eight in a byte."""
    return numpy.packbits(numpy.stack(rights), axis=1)


def unpacked(bits: NDArray[numpy.uint8], images: int) -> NDArray[numpy.bool_]:
    """Cases × N booleans again."""
    return numpy.unpackbits(bits, axis=1, count=images).astype(bool)
