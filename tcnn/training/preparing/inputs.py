"""What a run learns from: its data sets, and the loader of its augmented batches."""

import re
from collections.abc import Mapping, Sequence
from os import PathLike, fspath

import torch

from tcnn.config import FinetuneConfig
from tcnn.config.finetune import DEFAULT_SPLIT
from tcnn.data.image_set import ImageSet, class_balanced, open_dataset, split_off, training_transform
from tcnn.data.loader import TrainingLoader
from tcnn.errors import RequestError
from tcnn.formatting import some
from tcnn.models.trace import input_settings
from tcnn.training.distributed import Processes
from tcnn.training.preparing.prepare import Start
from tcnn.training.recipe.objective import uses_mixup

DataSets = tuple[ImageSet, ImageSet, FinetuneConfig]
"""Images to train on, images to validate on, and the configuration with the share that was held out."""


Named = str | ImageSet
"""A data set by its name, or opened."""


def data_sets(data: object, val: object = None, val_split: object = None) -> tuple[Named, Named | None]:
    """Data sets as they were given, a path by its name, what a caller has opened as an `ImageSet`.

    Of splits that a caller has opened, validation is taken, too, unless a share is to be held out. Raises
    `RequestError` for what is no data set.
    """
    train = _data_set(data, "train")
    names = train.class_names if isinstance(train, ImageSet) else None
    if val is not None:
        try:
            return train, _data_set(val, "validation", names)
        except RequestError as error:
            raise RequestError(re.sub("^data:", "val:", str(error))) from error
    if val_split is None and isinstance(data, Mapping):
        try:
            return train, open_dataset(data, "validation", names)
        except RequestError as error:
            raise RequestError(f"{error}; give one of them as val, or val_split") from error
    return train, None


def _data_set(data: object, split: str, class_names: Sequence[str] | None = None) -> Named:
    if isinstance(data, str | PathLike):
        return fspath(data)
    return data if isinstance(data, ImageSet) else open_dataset(data, split, class_names)


def open_data_sets(
    data: str | ImageSet, val: str | ImageSet | None, config: FinetuneConfig, in_chans: int = 3
) -> DataSets:
    """Open the training and the validation set.

    Where there is no validation set, and none is asked for, `DEFAULT_SPLIT` of the training images is held out, and
    the configuration that is returned says so. The training set's classes give the numbers of both. Raises
    `RequestError` if `val` has no such split, or another class.
    """
    train = open_dataset(data, "train", in_chans=in_chans) if isinstance(data, str) else data.of_channels(in_chans)
    held_out = None
    if isinstance(val, ImageSet):
        held_out = val.of_channels(in_chans).numbered_as(train.class_names, "val")
    named = isinstance(val, str)
    spec = val if isinstance(val, str) else data if isinstance(data, str) else None
    if spec is not None and held_out is None and (named or config.val_split is None):
        try:
            found = open_dataset(spec, "validation", class_names=train.class_names, in_chans=in_chans)
        except RequestError as error:
            if named:
                raise
            hint = "hold a part of the training images out (--val-split 0.1), or name others (--val)"
            raise RequestError(f"{error}; to validate on, {hint}") from error
        held_out = found if named or found.split is not None else None
    if held_out is None:
        share = DEFAULT_SPLIT if config.val_split is None else config.val_split
        config = config.model_copy(update={"val_split": share})
        train, held_out = split_off(train, share, config.seed)
    if config.fraction < 1:
        train = class_balanced(train, config.fraction, config.seed)
    return train, held_out, config


def _fitting(images: int, multiple: int) -> str:
    """Which batches, of a multiple of so many images, a data set fills, and one that leaves an epoch eight updates."""
    if images < multiple:
        return f"a batch has at least {multiple} here; give more images"
    example = multiple << max(0, (images // (8 * multiple)).bit_length() - 1)
    of = f", a multiple of {multiple}" if multiple > 1 else ""
    return (
        f"give --batch-size {images // multiple * multiple} or less{of}; with {example}, an epoch has "
        f"{some(images // example, 'update')}"
    )


def training_loader(
    start: Start, data: ImageSet, config: FinetuneConfig, processes: Processes, device: torch.device
) -> TrainingLoader:
    """The loader of a run's augmented batches; raises `RequestError` for a batch that the data cannot fill."""
    settings = input_settings(start.model)
    transform = training_transform(
        size=start.size, mean=settings["mean"], std=settings["std"], interpolation=config.train_interpolation,
        aa=config.auto_augment,
        color_jitter=config.color_jitter, reprob=config.reprob, scale=config.scale, ratio=config.ratio,
        crop_padding=config.crop_padding, hflip=config.hflip, vflip=config.vflip,
    )  # fmt: skip
    if config.batch_size > len(data):
        raise RequestError(
            f"batch_size: {config.batch_size} is more than the data set's {some(len(data), 'training image')}; "
            f"{_fitting(len(data), processes.world * (2 if uses_mixup(config) else 1))}"
        )
    if uses_mixup(config) and config.batch_size % (2 * processes.world):
        raise RequestError(
            f"batch_size: mixup needs an even number on each of {some(processes.world, 'device')}, found "
            f"{config.batch_size} over all of them"
        )
    micro = config.micro_batch or (128 if device.type == "cuda" else 64)
    if uses_mixup(config):
        micro = max(2, micro // 2 * 2)
    return TrainingLoader(
        data, transform, batch_size=config.batch_size, micro_batch=micro,
        seed=config.seed, repeats=config.repeats, workers=config.workers, rank=processes.rank, world=processes.world,
        pin_memory=device.type == "cuda",
    )  # fmt: skip
