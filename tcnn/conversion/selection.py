"""Select the convolutions to convert, by stage or by name, with the reason why others are skipped.

A stage is what runs between two entries of timm's `feature_info`; the last stage is the spatial convolutions that work
at the backbone's final resolution. Where `feature_info` is missing or of no help, the resolutions of a traced forward
pass decide.
"""

import re
from dataclasses import dataclass, field, replace
from itertools import takewhile

from torch import nn

from tcnn.config import ConversionConfig
from tcnn.conversion.ties import inseparable
from tcnn.errors import NothingToConvertError, RequestError
from tcnn.layers.filters import refusal
from tcnn.models.extractors import PREFIXES, flat
from tcnn.models.trace import Step, input_shape


@dataclass(frozen=True)
class Selection:
    """The convolutions chosen, by dotted name in running order, and what was passed over with the reason."""

    names: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]
    stage: str
    span: range = field(default=range(0))
    """The steps of the trace that make up the stage, for stride removal."""


@dataclass(frozen=True)
class _Stage:
    """A stretch of the trace at one resolution."""

    label: str
    start: int  # first step
    stop: int  # one past the last


def select(model: nn.Module, steps: list[Step], config: ConversionConfig) -> Selection:
    """Choose by `config.target`, a regular expression, or by `config.stage`, an index.

    Args:
        steps: the trace of the model, which decides where stages begin and end.

    Raises: `NothingToConvertError` when no convolution is left, `RequestError` for a stage that there is not.
    """
    stages = _feature_stages(model, steps) or _resolution_stages(model, steps)
    stage = _pick(stages, config.stage)
    span = range(stage.start, stage.stop) if stage else range(0)
    if config.target is not None:
        return _separable(model, _by_target(model, steps, config.target, span))
    if stage is None:
        raise NothingToConvertError(f"{_title(model)} runs no convolution: nothing to convert")
    chosen, skipped = _stage_convolutions(model, steps, stage, last=stage is stages[-1])
    if not chosen:
        raise NothingToConvertError(_nothing_in(model, steps, stages, stage, skipped))
    return _separable(model, Selection(chosen, skipped, stage.label, span))


def stages_of(model: nn.Module, steps: list[Step]) -> list[tuple[str, int]]:
    """The label of every stage, by index, and how many convolutions of it can be chosen."""
    stages = _feature_stages(model, steps) or _resolution_stages(model, steps)
    return [(one.label, len(_stage_convolutions(model, steps, one, last=one is stages[-1])[0])) for one in stages]


def _separable(model: nn.Module, selection: Selection) -> Selection:
    """The selection without convolutions whose filter is shared with a layer that stays."""
    reasons = inseparable(model, selection.names)
    names = tuple(name for name in selection.names if name not in reasons)
    if not names:
        said = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise NothingToConvertError(f"{_title(model)}: no convolution of {selection.stage} can be converted: {said}")
    return replace(selection, names=names, skipped=(*selection.skipped, *reasons.items()))


def is_spatial(module: nn.Module) -> bool:
    """Whether the layer is a convolution that looks at more than one pixel."""
    return isinstance(module, nn.Conv2d) and max(module.kernel_size) > 1


def _is_convolution(module: nn.Module) -> bool:
    """Whether the layer is a convolution of any kind, or is named like one."""
    return isinstance(module, nn.modules.conv._ConvNd) or (
        "Conv" in type(module).__name__ and hasattr(module, "weight")
    )


def _feature_stages(model: nn.Module, steps: list[Step]) -> list[_Stage]:
    """Stages between consecutive entries of `feature_info`; empty when the last entry names nothing that runs."""
    info = getattr(model, "feature_info", None)
    entries = getattr(info, "info", info) or []
    if not isinstance(entries, list) or not all(isinstance(e, dict) and e.get("module") for e in entries):
        return []
    ends: dict[str, int] = {}
    for entry in entries:
        end = _last_run(steps, entry["module"])
        if end is not None:
            ends[entry["module"]] = end
    if not entries or entries[-1]["module"] not in ends:
        return []
    if len({entry.get("reduction") for entry in entries}) == 1:  # isotropic: one resolution is one stage
        return [_Stage(f"{entries[0]['module']} … {entries[-1]['module']}", 0, max(ends.values()) + 1)]
    stages, start = [], 0
    for module, end in ends.items():
        stages.append(_Stage(module, start, end + 1))
        start = end + 1
    if len(stages) > 1 and not any(_has_weights(step.module) for step in steps[stages[-1].start : stages[-1].stop]):
        pool, stage = stages.pop(), stages.pop()  # VGG's last entry is the pool behind its last convolutions
        stages.append(_Stage(stage.label, stage.start, pool.stop))
    return stages


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _last_run(steps: list[Step], module: str) -> int | None:
    """The last step of a module named as in the classifier, be the model that or one of timm's feature extractors."""
    ran = [f"{flat(step.name)}_" for step in steps]
    for prefix in PREFIXES:
        runs = [i for i, name in enumerate(ran) if name.startswith(f"{prefix}{flat(module)}_")]
        if runs:
            return runs[-1]
    return None


def _resolution_stages(model: nn.Module, steps: list[Step]) -> list[_Stage]:
    """One stage per output resolution of the spatial convolutions, in running order; 1×1 maps are heads, not stages."""
    image = input_shape(model)[0]
    spatial = [(i, s) for i, s in enumerate(steps) if is_spatial(s.module) and _area(s.output_shape)]
    inner = [(i, s) for i, s in spatial if not _reads_image(s, steps, image)] or spatial
    inner = [(i, s) for i, s in inner if _area(s.output_shape) > 1] or inner
    stages: list[_Stage] = []
    smallest = float("inf")
    for i, step in inner:
        area = _area(step.output_shape)
        if area <= smallest / 2 and step.output_shape is not None:
            label = "×".join(map(str, step.output_shape[-2:])) + " pixels"
            start = _pool_before(steps, i, after=max((n for n, _ in spatial if n < i), default=-1))
            if stages:
                stages[-1] = _Stage(stages[-1].label, stages[-1].start, start)
            stages.append(_Stage(label, start, len(steps)))
            smallest = area
    if stages:  # what follows the last inner convolution is the head
        stages[-1] = _Stage(stages[-1].label, stages[-1].start, inner[-1][0] + 1)
    return stages


def _pool_before(steps: list[Step], first: int, after: int) -> int:
    """Where a stage begins: at the pool, behind a step, that brought the map to the size of its first convolution."""
    final = _area(steps[first].output_shape)
    for i in range(after + 1, first):
        before, behind = _area(steps[i].input_shape), _area(steps[i].output_shape)
        if not isinstance(steps[i].module, nn.Conv2d) and final <= behind <= before / 2:
            return i
    return first


def _pick(stages: list[_Stage], index: int) -> _Stage | None:
    """The stage of this index, negative from the end; None if there are no stages."""
    if not stages:
        return None
    if not -len(stages) <= index < len(stages):
        known = ", ".join(f"{i} ({stage.label})" for i, stage in enumerate(stages))
        raise RequestError(f"stage: expected one of {known} or a negative index from the end, got {index}")
    return stages[index]


def _stage_convolutions(
    model: nn.Module, steps: list[Step], stage: _Stage, last: bool
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The k×k convolutions of a stage that work at its resolution, by name, and those skipped with their reasons.

    Args:
        last: whether the stage is the last, to which what runs after it at the same resolution belongs as well.
    """
    channels = input_shape(model)[0]
    skipped: dict[str, str] = {}
    found: list[tuple[int, Step]] = []
    # GhostNet's and FastViT's last convolutions run after the last entry of feature_info, at the same resolution.
    for i, step in enumerate(steps[stage.start :] if last else steps[stage.start : stage.stop], stage.start):
        if is_spatial(step.module) and _area(step.output_shape):
            if step.name and _reads_image(step, steps, channels):
                skipped[step.name] = "it reads the image itself, as a stem or patch embedding"
            else:
                found.append((i, step))
        elif _is_convolution(step.module) and not isinstance(step.module, nn.Conv2d):
            skipped[step.name] = refusal(step.module) or ""
    inside = [(i, s) for i, s in found if i < stage.stop]
    if not inside:
        return (), tuple(skipped.items())
    height, width = min((_hw(s) for _, s in inside), key=lambda hw: hw[0] * hw[1])
    final = height * width
    pool = _first_pool(steps, stage, final)
    chosen: dict[str, None] = {}
    for i, step in found:
        h, w = _hw(step)
        at_final = h * w <= 2 * final and (i < stage.stop or 2 * h * w >= final)
        # An anti-aliased ResNet convolves at the old resolution and pools afterwards: still this stage's first layer.
        before_pool = stage.start > 0 and i < pool and h <= 2 * height + 1 and w <= 2 * width + 1
        if at_final or before_pool:
            reason = refusal(step.module)
            if reason:
                skipped[step.name] = reason
            else:
                chosen[step.name] = None
        elif i < stage.stop:
            skipped[step.name] = f"it works at {h}×{w}, not at the stage's {height}×{width}"
    return tuple(chosen), tuple(skipped.items())


def _first_pool(steps: list[Step], stage: _Stage, final: int) -> int:
    """The step that brings the stage to its final resolution, if it is a pool; −1 if a strided convolution does it."""
    for i in range(stage.start, stage.stop):
        before, after = _area(steps[i].input_shape), _area(steps[i].output_shape)
        if final <= 2 * after <= before:
            return -1 if isinstance(steps[i].module, nn.Conv2d) else i
    return -1


def _by_target(model: nn.Module, steps: list[Step], target: str, span: range) -> Selection:
    """The k×k convolutions whose whole dotted name matches the regular expression."""
    ran = {step.name for step in steps}
    names, skipped, candidates = [], [], []
    for name, module in model.named_modules():
        if not _is_convolution(module):
            continue
        candidates.append(name)
        if not re.fullmatch(target, name):
            continue
        if isinstance(module, nn.Conv2d) and not is_spatial(module):
            skipped.append((name, "1×1: it looks at one pixel only, there is nothing to attend to"))
        elif reason := refusal(module):
            skipped.append((name, reason))
        elif name not in ran:
            skipped.append((name, "it does not run in a forward pass"))
        else:
            names.append(name)
    if names:
        return Selection(tuple(names), tuple(skipped), f"target {target}", span)
    if skipped:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped[:8])
        raise NothingToConvertError(f"target {target!r} matches only layers that cannot be converted: {reasons}")
    examples = ", ".join(name for name in candidates if is_spatial(model.get_submodule(name))) or "none"
    raise NothingToConvertError(
        f"target {target!r} matches no convolution (the whole dotted name must match); convolutions here: "
        f"{_shorten(examples)}"
    )


def _nothing_in(
    model: nn.Module, steps: list[Step], stages: list[_Stage], stage: _Stage, skipped: tuple[tuple[str, str], ...]
) -> str:
    """The message for a stage without a k×k convolution: what was looked at, and which stages have some."""
    looked = f"looked at {len(steps[stage.start : stage.stop])} layers of stage {stage.label}"
    passed = "; ".join(f"{name}: {reason}" for name, reason in skipped[:4])
    message = f"{_title(model)}: no k×k convolution to convert ({looked}{'; ' + passed if passed else ''})"
    others = []
    for index, other in enumerate(stages):
        if other is not stage:
            names, _ = _stage_convolutions(model, steps, other, last=False)
            if names:
                others.append(f"--stage {index} ({len(names)} in {other.label})")
    if others:
        return f"{message}; other stages: {', '.join(others)}"
    everywhere = ", ".join(dict.fromkeys(step.name for step in steps if is_spatial(step.module)))
    return f"{message}; " + (f"the only k×k convolutions are {_shorten(everywhere)}" if everywhere else "it has none")


def _reads_image(step: Step, steps: list[Step], channels: int) -> bool:
    """Whether a layer's input is the image itself, whole or cut into patches: a stem or a patch embedding."""
    shape = step.input_shape
    if shape is None or shape[1:2] != (channels,):
        return False
    first = next(s.input_shape for s in steps if s.input_shape is not None)
    # TNT cuts the image into patches first: whatever no weights have touched is still the image.
    before = takewhile(lambda s: s is not step, steps)
    return shape[-2:] == first[-2:] or not any(_has_weights(s.module) for s in before)


def _hw(step: Step) -> tuple[int, int]:
    assert step.output_shape is not None  # noqa: S101 - callers keep only steps with a map
    return step.output_shape[-2], step.output_shape[-1]


def _area(shape: tuple[int, ...] | None) -> int:
    return shape[-1] * shape[-2] if shape is not None and len(shape) in (3, 4) else 0


def _title(model: nn.Module) -> str:
    cfg = getattr(model, "pretrained_cfg", None) or {}
    return cfg.get("architecture") or type(model).__name__


def _shorten(text: str, limit: int = 400) -> str:
    return text if len(text) <= limit else text[:limit].rsplit(",", 1)[0] + ", …"
