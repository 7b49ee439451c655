"""Refuse what would have no effect on a run, before anything is loaded: in Python and on the command line alike."""

from collections.abc import Sequence
from pathlib import Path

from tcnn.checkpoints.files import checkpoint_file
from tcnn.errors import RequestError
from tcnn.zoo.catalogue import canonical, cnn_of, is_converted

BOTH_SETS = "--val-split: --val names the images to validate on; leave out one of the two (val_split of a file, too)"


def check_run(
    model: object,
    *,
    resume: bool,
    force: bool,
    allow_changes: bool,
    weights: Path | None = None,
    pretrained: bool = True,
    both_sets: bool = False,
    convert: bool = True,
    conversion: Sequence[str] = (),
) -> None:
    """Raise `RequestError` for an argument of `finetune` that would change nothing.

    Args:
        model: a name or path, or anything else, which is not looked at.
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
    if not isinstance(model, str | Path) or checkpoint_file(model) is None:
        return  # no checkpoint, and what it is instead will be said
    if weights is not None or not pretrained:
        option = "--weights" if weights is not None else "--no-pretrained"
        raise RequestError(f"{option}: {model} brings weights of its own; leave it out")
    if conversion:
        raise RequestError(f"--set {conversion[0]}: {model} is converted already; convert its CNN anew to change that")
