"""Compare several models on one data set: image sizes, corruptions, ImageNet variants."""

import gc
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from tcnn.arguments import typed
from tcnn.checkpoints.files import label_names
from tcnn.checkpoints.opening import Opener, open_model, weights_of_one
from tcnn.config import build
from tcnn.config.evaluation import ALEXNET, EvaluationConfig
from tcnn.data.image_set import ImageSet
from tcnn.display import ImageCount, counted_images
from tcnn.errors import RequestError
from tcnn.evaluation import corruptions as effects
from tcnn.evaluation import held_out
from tcnn.evaluation import imagenet_variants as imagenet
from tcnn.evaluation.comparing.paired import Answers, Tally, image_names, paired_differences
from tcnn.evaluation.comparing.passes import (
    CLEAN,
    DataSets,
    ImageCounter,
    Pass,
    Subject,
    plan_passes,
    run_pass,
)
from tcnn.evaluation.comparing.report import Comparison, Row, corruption_scores, errors, set_corruption_errors
from tcnn.evaluation.comparing.single_images import Looked, changes, mistakes
from tcnn.evaluation.evaluate import NAMED_UNREADABLE
from tcnn.evaluation.outcomes import Observer
from tcnn.evaluation.scores import Evaluation
from tcnn.formatting import unused
from tcnn.models.checks import unwrapped
from tcnn.models.copying import copied
from tcnn.models.running import architecture_name, place_of, usable_device
from tcnn.models.trace import input_settings, input_shape, output_count, parameter_count


class Measured(NamedTuple):
    """What a model answered at one size."""

    row: Row
    answers: Answers
    looked: Looked | None
    """Its answers to clean images, one by one, if images are to be shown."""


@typed()
def compare(
    models: str | Path | nn.Module | Sequence[str | Path | nn.Module],
    data: str | Path | None = None,
    config: EvaluationConfig | None = None,
    *,
    weights: str | Path | None = None,
    progress: ImageCount | None = None,
    quiet: bool = False,
    known_as: str | None = None,
    opening: Opener = open_model,
    **options: object,
) -> Comparison:
    """Evaluate every model at every size, clean and corrupted, and compare each with the first, image by image.

    Args:
        models: tcnn checkpoints (files, runs, hub-layout directories), timm names, `local-dir:PATH`, `hf-hub:ORG/NAME`;
            or modules, which are told by the names of their architectures, and are not changed.
        data: as for `open_dataset`, or an ImageNet-C folder; by default what the first model was validated on.
        config: the settings; keywords go over it: ``compare(["runs/cnn", "runs/tcnn"], corruptions=("fog",))``.
        weights: a file with the weights of the one model, which is named; it says what they learned from, too.
        progress: called with images done, images in total, and what is being done; by default it is shown on stderr.
        quiet: show nothing.
        known_as: what runs that were trained on the data set record as its name, if not `data`: an upload's id.
        opening: makes a model of its name, and with `weights` a file's.

    Of a data set that one of them was trained on, the part that its training held out is measured, for all of them.

    Raises: `RequestError` (`CheckpointError`, `UnknownModelError`, …) when something does not fit;
    `EnvironmentFailure` when the device or its memory does not suffice.
    """
    config = build(EvaluationConfig, options, config)
    if not isinstance(data, str | Path | None):
        raise RequestError(
            f"data: expected the name or folder of a data set, found a value of type {type(data).__name__}; "
            "tcnn.evaluate measures one that is open, a model at a time"
        )
    named = _named(models)
    names, given = [name for name, _ in named], {name: model for name, model in named if model is not None}
    file = None if weights is None else weights_of_one([given.get(name, name) for name in names], weights)
    opening = opening if file is None else partial(opening, weights=file)
    spec, split = held_out.measured_by_default(names, file, given) if data is None else (str(data), None)
    config = config.model_copy(update={"split": config.split or split})
    with counted_images(quiet) if progress is None else nullcontext(progress) as counted:
        return _compare(names, spec, config, counted, known_as, opening, file, given, options)


def _named(models: object) -> list[tuple[str, nn.Module | None]]:
    """The models by name, with those that are modules; of one architecture they are numbered."""
    given = list(models) if isinstance(models, list | tuple) else [models]
    for model in given:
        if not isinstance(model, str | Path | nn.Module):
            raise RequestError(
                "models: expected names, files or directories of models, or modules, found a value of type "
                f"{type(model).__name__}"
            )
    if not given:
        raise RequestError("no model to evaluate; name a checkpoint or a timm model")
    named: list[tuple[str, nn.Module | None]] = []
    known = {str(model) for model in given if not isinstance(model, nn.Module)}
    for model in given:
        if isinstance(model, nn.Module):
            module = unwrapped(model, only_run=True)
            name = unused(architecture_name(module), known)
            known.add(name)
            named.append((name, module))
        else:
            named.append((str(model), None))
    return named


def _compare(
    models: Sequence[str],
    data: str,
    config: EvaluationConfig,
    progress: ImageCount,
    known_as: str | None,
    opening: Opener,
    weights: Path | None,
    given: held_out.Given,
    options: Iterable[str],
) -> Comparison:
    started = time.monotonic()
    device = usable_device(config.device)
    config = config.model_copy(update={"device": str(device)})
    passes = plan_passes(data, config)
    config.refuse_without_effect(options, stored=passes[0].folder is not None)
    opened = DataSets(config, data)
    unseen = held_out.Unseen(None, ())
    if passes[0].folder is None:
        opened(None)
        unseen = held_out.unseen(models, data, lambda: opened(None), known_as, weights, given)
        opened.restrict(unseen)
    first = opened(passes[0].folder)
    baseline = _baseline(models, config, passes, first)
    sizes: tuple[tuple[int, int] | None, ...] = config.sizes or (None,)
    counter = ImageCounter(len(models) * len(sizes) * len(passes) * len(first), progress)
    names = image_names(first, passes[0].folder) if len(models) > 1 else []
    measure = _Measurement(config, passes, opened, names, counter)

    measured: list[list[Measured]] = []
    layouts: list[imagenet.Layout] = []
    for name in models:
        counter.describe(f"loading {name}")
        model = _on(given[name], device) if name in given else opening(name).to(device)
        outputs = _outputs(model, name, sizes[0])
        layouts.append(_layout(config, passes, first.class_names, outputs))
        classes = imagenet.map_classes(name, data, layouts[-1], first.class_names, outputs, label_names(model))
        subject = Subject(name, model, outputs, input_shape(model)[0], classes)
        measured.append([measure(subject, size) for size in sizes])
        del model, subject
        gc.collect()
    all_measured = [one for of_model in measured for one in of_model]
    rows = [one.row for one in all_measured]
    if baseline == ALEXNET:
        set_corruption_errors(rows, [imagenet.ALEXNET_ERRORS] * len(rows))
    elif baseline is not None:
        of_baseline = [errors(one.row) for one in measured[models.index(baseline)]]
        set_corruption_errors(rows, of_baseline * len(models))
    return Comparison(
        data=data,
        split=None if first.split is None else opened.split,
        layout=", ".join(dict.fromkeys(layouts)),
        images=len(first),
        held_out=unseen.mask is not None,
        trained_on=list(unseen.trained_on),
        part_lost=list(unseen.part_lost),
        left_out=first.left_out,
        baseline=baseline,
        seconds=round(time.monotonic() - started, 3),
        rows=rows,
        differences=paired_differences([[one.answers for one in of_model] for of_model in measured]),
        changes=changes([one.looked for one in all_measured if one.looked is not None], config.examples),
    )


def _on(model: nn.Module, device: torch.device) -> nn.Module:
    """The module, or where it is on another device a copy there."""
    return model if place_of(model) == device else copied(model).to(device)


class _Measurement:
    """All passes of a comparison over one model at one size.

    Args:
        names: of the images (`image_names`), if models are compared image by image; else empty.
    """

    def __init__(
        self,
        config: EvaluationConfig,
        passes: Sequence[Pass],
        opened: DataSets,
        names: Sequence[str],
        counter: ImageCounter,
    ) -> None:
        self._config, self._passes, self._opened = config, passes, opened
        self._names, self._counter = names, counter

    def __call__(self, subject: Subject, size: tuple[int, int] | None) -> Measured:
        config, names = self._config, self._names
        pixels = size or input_shape(subject.model)[1:]
        results: dict[Pass, Evaluation] = {}
        tallies = {bool(one.corruption): Tally(names) for one in self._passes} if names else {}
        looked = None
        for one in self._passes:
            self._counter.describe(_label(subject.name, size, one))
            images = self._opened(one.folder, subject.channels, subject.classes.class_names)
            examples = config.examples and not one.corruption
            observer = Observer(images, config.batch_size) if names or examples else None
            results[one] = run_pass(subject, images, size, one, config, self._counter, observer)
            if observer is not None and names:
                tallies[bool(one.corruption)].add(images, observer.outcomes, one.folder)
            if observer is not None and examples:
                looked = Looked(subject.name, pixels, images, observer.outcomes)
        row = _row(subject, pixels, config.crop_pct, results)
        if looked is not None:
            row.mistakes = mistakes(looked, config.examples)
        return Measured(row, Answers(subject.name, pixels, tallies.get(False), tallies.get(True)), looked)


def _baseline(models: Sequence[str], config: EvaluationConfig, passes: Sequence[Pass], data: ImageSet) -> str | None:
    """The model whose errors CE and mCE are relative to; raises `RequestError` before any evaluation."""
    corrupted = {(one.corruption, one.severity) for one in passes if one.corruption}
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
    config: EvaluationConfig, passes: Sequence[Pass], class_names: Sequence[str], outputs: int
) -> imagenet.Layout:
    if config.layout != "auto":
        return config.layout
    return "imagenet-c" if passes[0].folder else imagenet.detect(class_names, outputs)


def _outputs(model: nn.Module, name: str, size: tuple[int, int] | None) -> int:
    try:
        outputs = output_count(model, size)
    except RequestError as error:
        raise RequestError(f"{name}: {error}") from error
    if outputs is None or outputs < 1:
        raise RequestError(f"{name}: has no classifier (num_classes is {outputs}); fine-tune it with one")
    return outputs


def _row(subject: Subject, pixels: tuple[int, int], crop_pct: float | None, results: dict[Pass, Evaluation]) -> Row:
    settings = input_settings(subject.model)
    scores = corruption_scores({(one.corruption, one.severity): r for one, r in results.items() if one.corruption})
    top1 = sum(score.top1 for score in scores.values()) / len(scores) if scores else None
    unreadable = list(dict.fromkeys(file for result in results.values() for file in result.unreadable))
    return Row(
        model=subject.name,
        parameters=parameter_count(subject.model),
        height=pixels[0],
        width=pixels[1],
        outputs=subject.outputs,
        classes=subject.outputs if subject.classes.outputs is None else len(subject.classes.outputs),
        crop_pct=settings["crop_pct"] if crop_pct is None else crop_pct,
        interpolation=settings["interpolation"],
        clean=results.get(CLEAN),
        corruptions=scores,
        corruption_top1=top1,
        corruption_error=None if top1 is None else 1 - top1,
        mce=None,
        unreadable=unreadable[:NAMED_UNREADABLE],
        unreadable_count=max(result.unreadable_count for result in results.values()),
    )


def _label(name: str, size: tuple[int, int] | None, one: Pass) -> str:
    where = f"at {size[0]}×{size[1]}" if size else ""
    return " ".join(
        filter(None, (Path(name).name, where, f"{one.corruption} {one.severity}" if one.corruption else ""))
    )
