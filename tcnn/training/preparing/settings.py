"""Settings of a run before anything is loaded: what would have no effect is refused, what is left open is filled in.

Refused it is in Python and on the command line alike. Filled in are resolution and stochastic depth by model, as in the
paper (Transformed CNNs, Table 1).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tcnn.checkpoints.files import checkpoint_file
from tcnn.config import FinetuneConfig
from tcnn.errors import RequestError
from tcnn.zoo.catalogue import canonical, cnn_of, is_converted, weights_file

BOTH_SETS = "--val-split: --val names the images to validate on; leave out one of the two (val_split of a file, too)"
LARGE = 60e6
"""Number of parameters from which a model gets the stochastic depth of Table 1's larger half."""


def check_run(
    model: object,
    *,
    resume: bool = False,
    force: bool = False,
    allow_changes: bool = False,
    weights: str | Path | None = None,
    pretrained: bool = True,
    both_sets: bool = False,
    convert: bool = True,
    conversion: Sequence[str] = (),
) -> None:
    """Raise `RequestError` for an argument of `finetune` that would change nothing, and for weights that are not there.

    A run that is resumed has them in its resume point, so that their file may be gone.

    Args:
        model: a name or path, or a network.
        both_sets: whether validation images and a share to hold out are named.
        convert: whether a CNN is to be converted.
        conversion: assignments to settings of a conversion.
    """
    if resume and force:
        raise RequestError("--force: with --resume no run is replaced; give one of the two")
    if allow_changes and not resume:
        raise RequestError("--allow-changes: a new run has nothing to differ from; give --resume as well")
    if both_sets:
        raise RequestError(BOTH_SETS)
    if not convert and isinstance(model, str) and not Path(model).exists() and is_converted(canonical(model)):
        raise RequestError(f"--no-convert: {model} is a T-CNN; name {cnn_of(model)}")
    network = not isinstance(model, str | Path)
    checkpoint = isinstance(model, str | Path) and checkpoint_file(model) is not None
    # A network has nothing pretrained that could be left out, so that `pretrained=False` is no mistake beside it.
    if ((network or checkpoint) and weights is not None) or (checkpoint and not pretrained):
        option = "--weights" if weights is not None else "--no-pretrained"
        name = type(model).__name__ if network else model
        raise RequestError(f"{option}: {name} brings weights of its own; leave it out")
    if weights is not None and not resume:
        weights_file(weights)
    if checkpoint and conversion:
        raise RequestError(f"--set {conversion[0]}: {model} is converted already; convert its CNN anew to change that")


class PaperRow(NamedTuple):
    """One row of Table 1: the resolution of fine-tuning in pixels, and the stochastic depth rate."""

    size: int
    drop_path: float


TABLE_1 = {
    "resnetrs50": PaperRow(224, 0.1),
    "resnetrs101": PaperRow(224, 0.1),
    "resnetrs152": PaperRow(320, 0.2),
    "resnetrs200": PaperRow(320, 0.2),
    "resnetrs270": PaperRow(320, 0.2),
    "resnetrs350": PaperRow(320, 0.2),
}


def size_for(config: FinetuneConfig, architecture: str, cfg: dict[str, Any]) -> tuple[int, int]:
    """Image size for training, (height, width): the configured one, the paper's, or the model's own test size.

    timm's test size is usually above that of training, and fine-tuning at a higher resolution is what the paper does.
    """
    if config.size is not None:
        return (config.size, config.size) if isinstance(config.size, int) else config.size
    if architecture in TABLE_1:
        return TABLE_1[architecture].size, TABLE_1[architecture].size
    _, height, width = cfg.get("test_input_size") or cfg.get("input_size") or (3, 224, 224)
    return height, width


def drop_path_for(config: FinetuneConfig, architecture: str, parameters: int) -> float:
    """Stochastic depth rate: the configured one, the paper's, or one of the paper's two by the model's size."""
    if config.drop_path is not None:
        return config.drop_path
    if architecture in TABLE_1:
        return TABLE_1[architecture].drop_path
    return 0.2 if parameters >= LARGE else 0.1
