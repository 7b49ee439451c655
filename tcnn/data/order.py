"""Order of samples and random seeds, as pure functions of (seed, epoch, position).

Nothing here has a state, so a run that was killed goes on exactly where it stopped, and neither the number of worker
processes nor the number of ranks changes what a model sees. *Position* is a sample's place in its epoch over all ranks:
step · batch_size + place in the global batch.
"""

import hashlib

import torch
from torch import Tensor

from tcnn.errors import RequestError


def epoch_order(count: int, epoch: int, seed: int, batch_size: int, repeats: int = 1) -> Tensor:
    """Shuffled order of an epoch: the image at every position, int64, (count // batch_size · batch_size,).

    An incomplete last batch is left out.

    With `repeats` > 1 every image of a batch stands in it that many times, each time to be augmented differently
    (repeated augmentation, Hoffer et al. 2020); an epoch keeps its length, so it shows 1/repeats of the images. The
    copies are batch_size / repeats places apart: never side by side, and spread over ranks and micro-batches. Where
    `repeats` does not divide `batch_size` some images of a batch have a copy less.

    Raises `RequestError` if there are fewer images than one batch needs.
    """
    if batch_size < 1 or repeats < 1:
        raise RequestError(f"batch size and repeats must be at least 1, not {batch_size} and {repeats}")
    steps = count // batch_size
    if steps == 0:
        raise RequestError(
            f"a batch of {batch_size} is larger than the data set of {count}; choose a smaller batch size"
        )
    generator = torch.Generator().manual_seed(_mix("order", seed, epoch))
    shuffled = torch.randperm(count, generator=generator)
    distinct = -(-batch_size // repeats)
    batches = shuffled[: steps * distinct].view(steps, distinct)
    return batches.repeat(1, repeats)[:, :batch_size].flatten()


def sample_seed(seed: int, epoch: int, position: int) -> int:
    """Random seed, 0 … 2⁶⁴ − 1, of one sample."""
    return _mix("sample", seed, epoch, position)


def step_seed(seed: int, epoch: int, step: int) -> int:
    """Random seed, 0 … 2⁶⁴ − 1, of a step, for mixup and stochastic depth."""
    return _mix("step", seed, epoch, step)


def shuffle_seed(seed: int, what: str, part: int = 0) -> int:
    """Random seed, 0 … 2⁶⁴ − 1, of a choice that is made once per run: a validation split, a class's share."""
    return _mix(what, seed, part)


def _mix(stream: str, *numbers: int) -> int:
    """Hash numbers to a seed: seeds that differ in a few bits give similar generators, and sums of seeds collide."""
    digest = hashlib.blake2b("/".join([stream, *map(str, numbers)]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
