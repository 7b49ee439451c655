"""Compare several models on one data set: image sizes, corruptions, ImageNet variants."""

import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from tcnn.checkpoints.files import label_names
from tcnn.checkpoints.opening import Opener, open_model
from tcnn.config.evaluation import ALEXNET, EvaluationConfig
from tcnn.data.image_set import ImageSet, first_of_each, open_dataset
from tcnn.errors import EnvironmentFailure, RequestError, TcnnError, one_line, shorten
from tcnn.evaluation import corruptions as effects
from tcnn.evaluation import held_out
from tcnn.evaluation import imagenet_variants as imagenet
from tcnn.evaluation.comparing.paired import Answers, Tally, image_names, paired_differences
from tcnn.evaluation.comparing.report import Comparison, Row, corruption_scores, errors, set_corruption_errors
from tcnn.evaluation.comparing.single_images import Looked, changes, mistakes
from tcnn.evaluation.evaluate import NAMED_UNREADABLE, evaluate
from tcnn.evaluation.outcomes import Observer
from tcnn.evaluation.scores import Evaluation
from tcnn.models.running import usable_device
from tcnn.models.trace import input_settings, input_shape, parameter_count

Progress = Callable[[int, int, str], None]
"""Called with images done, images in total, and a description."""


class Case(NamedTuple):
    """One pass over the images: clean when `name` is None; corrupted on the fly, or read from `folder`."""

    name: str | None = None
    severity: int = 0
    folder: Path | None = None


def compare(
    models: Sequence[str],
    data: str,
    config: EvaluationConfig | None = None,
    progress: Progress | None = None,
    known_as: str | None = None,
    opening: Opener = open_model,
    weights: Path | None = None,
) -> Comparison:
    """Evaluate every model at every size, clean and corrupted.

    Args:
        models: tcnn checkpoints (files or hub-layout directories), timm names, `local-dir:PATH` or `hf-hub:ORG/NAME`.
        data: as for `open_dataset`, or an ImageNet-C folder.
        opening: makes a model of its name.
        weights: the file from which `opening` loads those of the one model, which says what they learned from.
        known_as: what runs that were trained on the data set record as its name, if not `data`: an upload's id.

    Of a data set that one of them was trained on, the part that its training held out is measured, for all of them.

    Raises: `RequestError` (`CheckpointError`, `UnknownModelError`, …) when something does not fit;
    `EnvironmentFailure` when the device or its memory does not suffice.
    """
    started = time.monotonic()
    config = config or EvaluationConfig()
    device = usable_device(config.device)
    config = config.model_copy(update={"device": str(device)})
    cases = plan(data, config)
    opened = _DataSets(config, data)
    unseen = (
        held_out.Unseen(None, ())
        if cases[0].folder
        else held_out.unseen(models, data, lambda: opened(None), known_as, weights)
    )
    opened.restrict(unseen.files)
    first = opened(cases[0].folder)
    baseline = _baseline(models, config, cases, first)
    sizes: tuple[tuple[int, int] | None, ...] = config.sizes or (None,)
    counter = _ImageCounter(len(models) * len(sizes) * len(cases) * len(first), progress)

    rows: list[Row] = []
    looked: list[Looked] = []
    answers: list[list[Answers]] = []
    # Once: a source may have to read images for their names.
    named = image_names(first, cases[0].folder) if len(models) > 1 else []
    layouts: list[imagenet.Layout] = []
    for name in models:
        counter.describe(f"loading {name}")
        model = opening(name).to(device)
        outputs, channels = _outputs(model, name), input_shape(model)[0]
        layout = _layout(config, cases, first.class_names, outputs)
        matching = imagenet.map_classes(name, data, layout, first.class_names, outputs, label_names(model))
        layouts.append(layout)
        answers.append([])
        for size in sizes:
            pixels = size or input_shape(model)[1:]
            results: dict[Case, Evaluation] = {}
            tallies = {bool(case.name): Tally(named) for case in cases} if named else {}
            for case in cases:
                counter.describe(_label(name, size, case))
                images = opened(case.folder, channels, matching.class_names)
                watched = named or (config.examples and not case.name)
                observer = Observer(images, config.batch_size) if watched else None
                results[case] = _evaluate(name, model, images, size, case, matching.outputs, config, counter, observer)
                if observer is not None and named:
                    tallies[bool(case.name)].add(images, observer.outcomes, case.folder)
                if observer is not None and config.examples and not case.name:
                    looked.append(Looked(name, pixels, images, observer.outcomes))
            answers[-1].append(Answers(name, pixels, tallies.get(False), tallies.get(True)))
            classes = len(matching.outputs or range(outputs))
            rows.append(_row(name, model, pixels, outputs, classes, config.crop_pct, results))
            if looked and Case() in results:
                rows[-1].mistakes = mistakes(looked[-1], config.examples)
        del model
        gc.collect()
    if baseline == ALEXNET:
        set_corruption_errors(rows, [imagenet.ALEXNET_ERRORS] * len(rows))
    elif baseline is not None:
        start = models.index(baseline) * len(sizes)
        set_corruption_errors(rows, [errors(row) for row in rows[start : start + len(sizes)]] * len(models))
    return Comparison(
        data=data,
        split=None if first.split is None else config.split,
        layout=", ".join(dict.fromkeys(layouts)),
        images=len(first),
        held_out=unseen.files is not None,
        trained_on=list(unseen.trained_on),
        baseline=baseline,
        seconds=round(time.monotonic() - started, 3),
        rows=rows,
        differences=paired_differences(answers),
        changes=changes(looked, config.examples),
    )


def plan(data: str, config: EvaluationConfig) -> list[Case]:
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
        return [Case(), *(Case(name, severity) for name in wanted for severity in config.severities)]
    cases = [
        Case(name, severity, folders[name][severity])
        for name in wanted or tuple(folders)
        for severity in config.severities
        if severity in folders.get(name, {})
    ]
    if not cases:
        there = f"it has {', '.join(folders)} with severities {sorted({s for f in folders.values() for s in f})}"
        raise RequestError(f"{data}: none of the corruptions and severities that were asked for; {there}")
    return cases


class _DataSets:
    """Cache of opened data sets, one for each matching of classes."""

    def __init__(self, config: EvaluationConfig, data: str) -> None:
        self._config, self._data = config, data
        self._files: frozenset[str] | None = None
        self._sets: dict[tuple[str, int, tuple[str, ...] | None], ImageSet] = {}

    def restrict(self, files: frozenset[str] | None) -> None:
        """From now on only the images with these names; None are all."""
        if files is not None:
            self._files = files
            self._sets.clear()

    def __call__(self, folder: Path | None, channels: int = 3, class_names: tuple[str, ...] | None = None) -> ImageSet:
        key = (str(folder or self._data), channels, class_names)
        if key not in self._sets:
            images = open_dataset(key[0], self._config.split, class_names=class_names, in_chans=channels)
            images = held_out.only(images, self._files)
            if self._config.limit is not None:
                images = first_of_each(images, self._config.limit)
            self._sets[key] = images
        return self._sets[key]


class _ImageCounter:
    """Counts images for the progress callback."""

    def __init__(self, total: int, report: Progress | None) -> None:
        self._done, self._total, self._report, self._what = 0, total, report, ""

    def describe(self, what: str) -> None:
        self._what = what
        self(0)

    def __call__(self, images: int) -> None:
        self._done += images
        if self._report is not None:
            self._report(self._done, self._total, self._what)


def _baseline(models: Sequence[str], config: EvaluationConfig, cases: Sequence[Case], data: ImageSet) -> str | None:
    """The model whose errors CE and mCE are relative to; raises `RequestError` before any evaluation."""
    if not models:
        raise RequestError("no model to evaluate; name a checkpoint or a timm model")
    corrupted = {(case.name, case.severity) for case in cases if case.name}
    known = set(data.class_names) == set(imagenet.synsets()) and len(corrupted) == 15 * len(effects.SEVERITIES)
    if config.baseline == ALEXNET and not known:
        raise RequestError(
            "--baseline alexnet: its errors are published for ImageNet's 1,000 classes and all fifteen corruptions at "
            "all five severities; name one of the models instead"
        )
    if config.baseline not in (None, ALEXNET, *models):
        raise RequestError(f"--baseline {config.baseline}: expected {ALEXNET} or one of {', '.join(models)}")
    if not corrupted:
        return None
    return config.baseline or (ALEXNET if known else models[0] if len(models) > 1 else None)


def _layout(
    config: EvaluationConfig, cases: Sequence[Case], class_names: Sequence[str], outputs: int
) -> imagenet.Layout:
    if config.layout != "auto":
        return config.layout
    return "imagenet-c" if cases[0].folder else imagenet.detect(class_names, outputs)


def _outputs(model: nn.Module, name: str) -> int:
    outputs: Any = getattr(model, "num_classes", None)
    if not isinstance(outputs, int) or outputs < 1:
        raise RequestError(f"{name}: has no classifier (num_classes is {outputs}); fine-tune it with one")
    return outputs


def _evaluate(
    name: str,
    model: nn.Module,
    images: ImageSet,
    size: tuple[int, int] | None,
    case: Case,
    outputs: tuple[int, ...] | None,
    config: EvaluationConfig,
    counter: _ImageCounter,
    observer: Observer | None,
) -> Evaluation:
    crop = 1.0 if case.folder and config.crop_pct is None else config.crop_pct  # ImageNet-C is stored cropped
    live = (case.name, case.severity) if case.name and not case.folder else None
    try:
        result = evaluate(
            model, images, size=size, crop_pct=crop, batch_size=config.batch_size, workers=config.workers,
            device=config.device, amp=config.amp, channels_last=config.channels_last, corruption=live,
            class_subset=outputs, seed=config.seed, progress=counter, observe=observer,
        )  # fmt: skip
    except RequestError as error:  # which of several models it is
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


def _row(
    name: str,
    model: nn.Module,
    pixels: tuple[int, int],
    outputs: int,
    classes: int,
    crop_pct: float | None,
    results: dict[Case, Evaluation],
) -> Row:
    settings = input_settings(model)
    scores = corruption_scores({(case.name, case.severity): r for case, r in results.items() if case.name})
    top1 = sum(score.top1 for score in scores.values()) / len(scores) if scores else None
    unreadable = list(dict.fromkeys(file for result in results.values() for file in result.unreadable))
    return Row(
        model=name,
        parameters=parameter_count(model),
        height=pixels[0],
        width=pixels[1],
        outputs=outputs,
        classes=classes,
        crop_pct=settings["crop_pct"] if crop_pct is None else crop_pct,
        interpolation=settings["interpolation"],
        clean=results.get(Case()),
        corruptions=scores,
        corruption_top1=top1,
        corruption_error=None if top1 is None else 1 - top1,
        mce=None,
        unreadable=unreadable[:NAMED_UNREADABLE],
        unreadable_count=max(result.unreadable_count for result in results.values()),
    )


def _label(name: str, size: tuple[int, int] | None, case: Case) -> str:
    where = f"at {size[0]}×{size[1]}" if size else ""
    return " ".join(filter(None, (Path(name).name, where, f"{case.name} {case.severity}" if case.name else "")))
