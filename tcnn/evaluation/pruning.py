"""What pruning costs: top-1 accuracy of the model before and after on the same images, with an interval."""

from collections.abc import Callable

from torch import nn

from tcnn.data.image_set import open_dataset
from tcnn.evaluation import held_out
from tcnn.evaluation.intervals import paired
from tcnn.evaluation.outcomes import outcomes
from tcnn.folding.report import PruningAccuracy
from tcnn.models.trace import input_shape


def measure_on(
    checkpoint: str, data: str, size: int | None = None, batch_size: int = 64, workers: int = 0
) -> Callable[[nn.Module, nn.Module], PruningAccuracy]:
    """A function of the model before and after pruning that measures both on a data set.

    Args:
        checkpoint: the model's file: of a data set that it was trained on, the part that was held out is measured.
        data: as for `open_dataset`; opened at once, so that a wrong name is answered before anything is computed.
        size: pixels; default the model's own.

    Raises: `RequestError` for a data set that is none, or whose classes are others than the model's.
    """
    images = open_dataset(data, "validation")
    unseen = held_out.unseen([checkpoint], data, lambda: images)

    def measure(before: nn.Module, after: nn.Module) -> PruningAccuracy:
        shape = input_shape(before)
        read = images if shape[0] != 1 else open_dataset(data, "validation", in_chans=1)
        chosen = held_out.only(read, unseen.files)
        sides = (size, size) if size is not None else (shape[1], shape[2])
        device = next(before.parameters()).device
        one, other = (
            outcomes(model, chosen, size=sides, batch_size=batch_size, workers=workers, device=device)
            for model in (before, after)
        )
        change = paired(one.right, other.right)
        return PruningAccuracy(
            data=data, images=len(one.right), before=float(one.right.mean()), after=float(other.right.mean()),
            difference=change.mean, low=change.low, high=change.high, held_out=unseen.files is not None,
            trained_on=bool(unseen.trained_on),
        )  # fmt: skip

    return measure
