"""The passes of a comparison over its images: clean, corrupted on the fly, or over the folders of ImageNet-C."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tcnn.config.evaluation import EvaluationConfig
from tcnn.data.image_set import ImageSet, first_of_each, open_dataset
from tcnn.display import ImageCount
from tcnn.errors import EnvironmentFailure, RequestError, TcnnError, one_line, shorten
from tcnn.evaluation import corruptions as effects
from tcnn.evaluation import held_out
from tcnn.evaluation import imagenet_variants as imagenet
from tcnn.evaluation.evaluate import evaluate
from tcnn.evaluation.outcomes import Observer
from tcnn.evaluation.scores import Evaluation


class Pass(NamedTuple):
    """One pass over the images: clean when `corruption` is None; corrupted on the fly, or read from `folder`."""

    corruption: str | None = None
    severity: int = 0
    folder: Path | None = None


CLEAN = Pass()


def plan_passes(data: str, config: EvaluationConfig) -> list[Pass]:
    """The passes over the images: corruptions of an ImageNet-C folder, or clean images and corruptions on the fly."""
    for name in config.corruptions:
        effects.check(name)
    wanted = tuple(name for name in effects.CORRUPTIONS if name in config.corruptions)
    folders = imagenet.corruption_folders(data) if config.layout in ("auto", "imagenet-c") else {}
    if not folders:
        if config.layout == "imagenet-c":
            raise RequestError(
                f"{data}: expected folders CORRUPTION/SEVERITY/CLASS, such as gaussian_noise/1/n01440764, found none"
            )
        return [CLEAN, *(Pass(name, severity) for name in wanted for severity in config.severities)]
    passes = [
        Pass(name, severity, folders[name][severity])
        for name in wanted or tuple(folders)
        for severity in config.severities
        if severity in folders.get(name, {})
    ]
    if not passes:
        there = f"it has {', '.join(folders)} with severities {sorted({s for f in folders.values() for s in f})}"
        raise RequestError(f"{data}: none of the corruptions and severities that were asked for; {there}")
    return passes


class DataSets:
    """Cache of opened data sets, one for each matching of classes.

    Where no split is asked for, it is `val`, or of a data set that has none what training has held out of `train`.
    """

    def __init__(self, config: EvaluationConfig, data: str) -> None:
        self._config, self._data = config, data
        self.split: str = config.split or "val"
        self._lacking: RequestError | None = None
        """What was wrong with `val`, if `train` was opened in its place."""
        self._chosen: Tensor | None = None
        self._sets: dict[tuple[str, int, tuple[str, ...] | None], ImageSet] = {}

    def restrict(self, unseen: held_out.Unseen) -> None:
        """Open only these images from now on; raises `RequestError` for `train` in place of `val`, if it is all of it.

        The data set has been opened before.
        """
        if unseen.mask is not None:
            self._chosen = unseen.mask
            self._sets.clear()
        elif self._lacking is not None:
            raise self._lacking

    def __call__(self, folder: Path | None, channels: int = 3, class_names: tuple[str, ...] | None = None) -> ImageSet:
        key = (str(folder or self._data), channels, class_names)
        if key not in self._sets:
            images = self._open(folder, channels, class_names)
            if self._chosen is not None:
                images = images.subset(self._chosen)
            if self._config.limit is not None:
                images = first_of_each(images, self._config.limit)
            self._sets[key] = images
        return self._sets[key]

    def _open(self, folder: Path | None, channels: int, class_names: tuple[str, ...] | None) -> ImageSet:
        try:
            return open_dataset(str(folder or self._data), self.split, class_names=class_names, in_chans=channels)
        except RequestError as error:
            if folder is not None or self._config.split is not None or self._lacking is not None:
                raise
            lacking = error
        try:
            images = open_dataset(self._data, "train", class_names=class_names, in_chans=channels)
        except RequestError:
            raise lacking from None
        self.split, self._lacking = "train", lacking
        return images


class ImageCounter:
    """Counts images for the progress callback."""

    def __init__(self, total: int, report: ImageCount) -> None:
        self._done, self._total, self._report, self._description = 0, total, report, ""

    def describe(self, description: str) -> None:
        """Report what is being done now."""
        self._description = description
        self(0)

    def __call__(self, images: int) -> None:
        self._done += images
        self._report(self._done, self._total, self._description)


class Subject(NamedTuple):
    """A model to evaluate: by which of its outputs, under which names of classes."""

    name: str
    model: nn.Module
    outputs: int
    """Number of classes that the model can predict."""
    channels: int
    classes: imagenet.ClassMapping


def run_pass(
    subject: Subject,
    images: ImageSet,
    size: tuple[int, int] | None,
    one: Pass,
    config: EvaluationConfig,
    counter: ImageCounter,
    observer: Observer | None,
) -> Evaluation:
    """Evaluate a model in one pass; raises as `evaluate`, with the model's name in the message."""
    name = subject.name
    crop = 1.0 if one.folder and config.crop_pct is None else config.crop_pct  # ImageNet-C is stored cropped
    on_the_fly = (one.corruption, one.severity) if one.corruption and not one.folder else None
    try:
        result = evaluate(
            subject.model, images, size=size, crop_pct=crop, batch_size=config.batch_size, workers=config.workers,
            device=config.device, amp=config.amp, channels_last=config.channels_last, corruption=on_the_fly,
            class_subset=subject.classes.outputs, seed=config.seed, progress=counter, observe=observer,
            warn=False,
        )  # fmt: skip
    except RequestError as error:
        raise RequestError(f"{name}: {error}") from error
    except TcnnError:
        raise
    except torch.OutOfMemoryError as error:
        raise EnvironmentFailure(
            f"{config.device}: out of memory with --batch-size {config.batch_size}; choose a smaller one"
        ) from error
    except (RuntimeError, ValueError, AssertionError) as error:
        raise RequestError(f"{name}: does not run on the images: {shorten(one_line(error), 160)}") from error
    return result if config.per_class else result.model_copy(update={"per_class": {}, "confusions": []})
