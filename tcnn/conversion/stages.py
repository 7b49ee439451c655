"""Find the stages of a CNN: by timm's `feature_info`, or by the resolutions of a traced forward pass.

A stage is what runs between two entries of `feature_info`, which names modules as in the classifier. timm's feature
extractors (`features_only=True`) have them by other names: `FeatureListNet` and `FeatureDictNet` write `stages.3` as
`stages_3`; the others hold the classifier as `model` (getter), `body` (hook) or `graph_module` (fx).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

from torch import nn

from tcnn.errors import RequestError, shorten
from tcnn.models.trace import Step, input_shape

PREFIXES = ("", "model_", "body_", "graph_module_")
"""What stands before the names of modules in timm's feature extractors."""


@dataclass(frozen=True)
class Stage:
    """A stretch of the trace at one resolution."""

    label: str
    start: int  # first step
    stop: int  # one past the last


def find_stages(model: nn.Module, steps: list[Step]) -> list[Stage]:
    """The stages of a model, in running order, from the trace of it."""
    return _feature_stages(model, steps) or _resolution_stages(model, steps)


def pick(stages: list[Stage], index: int) -> Stage | None:
    """The stage of this index, negative from the end; None if there are no stages."""
    if not stages:
        return None
    if not -len(stages) <= index < len(stages):
        known = ", ".join(f"{i} ({stage.label})" for i, stage in enumerate(stages))
        raise RequestError(
            f"stage: expected one of {known} or a negative index from the end, got {shorten(str(index), 40)}"
        )
    return stages[index]


def _feature_stages(model: nn.Module, steps: list[Step]) -> list[Stage]:
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
        return [Stage(f"{entries[0]['module']} … {entries[-1]['module']}", 0, max(ends.values()) + 1)]
    stages, start = [], 0
    for module, end in ends.items():
        stages.append(Stage(module, start, end + 1))
        start = end + 1
    if len(stages) > 1 and not any(_has_weights(step.module) for step in steps[stages[-1].start : stages[-1].stop]):
        pool, stage = stages.pop(), stages.pop()  # VGG's last entry is the pool behind its last convolutions
        stages.append(Stage(stage.label, stage.start, pool.stop))
    return stages


def _last_run(steps: list[Step], module: str) -> int | None:
    """The last step of a module named as in the classifier, be the model that or one of timm's feature extractors."""
    ran = [f"{flat_name(step.name)}_" for step in steps]
    for prefix in PREFIXES:
        runs = [i for i, name in enumerate(ran) if name.startswith(f"{prefix}{flat_name(module)}_")]
        if runs:
            return runs[-1]
    return None


def _resolution_stages(model: nn.Module, steps: list[Step]) -> list[Stage]:
    """One stage per output resolution of the spatial convolutions, in running order; 1×1 maps are heads, not stages.

    Each begins where the map first has its size, be it in a pool or in a shortcut, and the last ends behind the last of
    its convolutions, or of the layers that bring a larger map to that size.
    """
    image = input_shape(model)[0]
    spatial = [(i, s) for i, s in enumerate(steps) if is_spatial(s.module) and map_area(s.output_shape)]
    inner = [(i, s) for i, s in spatial if not reads_image(s, steps, image)] or spatial
    inner = [(i, s) for i, s in inner if map_area(s.output_shape) > 1] or inner
    stages: list[Stage] = []
    smallest = float("inf")
    for i, step in inner:
        area = map_area(step.output_shape)
        if area <= smallest / 2 and step.output_shape is not None:
            label = "×".join(map(str, step.output_shape[-2:])) + " pixels"
            behind = max((n + 1 for n, _ in spatial if n < i), default=0)
            start = next((n for n in range(behind, i) if _reduces(steps[n], area)), i)
            if stages:
                stages[-1] = Stage(stages[-1].label, stages[-1].start, start)
            stages.append(Stage(label, start, len(steps)))
            smallest = area
    if stages:  # what follows the last inner convolution, and the shortcut beside it, is the head
        end = inner[-1][0]
        end = max((n for n in range(end, len(steps)) if _reduces(steps[n], int(smallest))), default=end)
        stages[-1] = Stage(stages[-1].label, stages[-1].start, end + 1)
    return stages


def _reduces(step: Step, final: int) -> bool:
    """Whether a layer brings a map of twice the area, or more, to this one."""
    before, behind = map_area(step.input_shape), map_area(step.output_shape)
    return final <= behind <= before / 2 and behind < 2 * final


def keep_reductions_right(model: nn.Module, before: list[Step], after: list[Step]) -> None:
    """Lower the reductions in the model's `feature_info` where its maps have grown, as timm does for `output_stride`.

    Args:
        model: without its stride, whose own entries are changed; a feature extractor has two sets of them.
        before, after: the steps of the model with and without its stride, on images of one size.
    """
    seen: set[int] = set()
    for module in model.modules():
        info = getattr(module, "feature_info", None)
        entries = getattr(info, "info", info)
        if not isinstance(entries, list) or not all(isinstance(e, dict) and "module" in e for e in entries):
            continue
        ran = [n for n, entry in enumerate(entries) if _last_run(before, entry["module"]) is not None]
        for number, entry in enumerate(entries):
            if id(entry) not in seen and isinstance(entry.get("reduction"), int):
                seen.add(id(entry))
                # A convolution that ends the model is no module of its own in torch.fx: NFNet's, for example.
                end = None if ran and number > max(ran) else entry["module"]
                entry["reduction"] //= _growth(_map_of(before, end), _map_of(after, end))


def _map_of(steps: list[Step], module: str | None) -> tuple[int, ...]:
    """The shape of the map that a module ends in, or the last one of the model; empty where there is none."""
    if module is None:
        maps = [
            step.output_shape for step in steps if step.output_shape is not None and map_area(step.output_shape) > 1
        ]
        return maps[-1] if maps else ()
    end = _last_run(steps, module)
    return () if end is None else steps[end].output_shape or ()


def _growth(old: tuple[int, ...], new: tuple[int, ...]) -> int:
    """The factor by which both sides of a map have grown, wherever its channels are; 1 for anything else."""
    grown = [round(n / o) for o, n in zip(old, new, strict=False) if n > o > 0]
    return grown[0] if len(old) == len(new) == 4 and len(grown) == 2 and len(set(grown)) == 1 else 1


def is_spatial(module: nn.Module) -> bool:
    """Whether the layer is a convolution that looks at more than one pixel."""
    return isinstance(module, nn.Conv2d) and max(module.kernel_size) > 1


def reads_image(step: Step, steps: list[Step], channels: int) -> bool:
    """Whether a layer's input is the image itself, whole or cut into patches: a stem or a patch embedding."""
    shape = step.input_shape
    if shape is None or shape[1:2] != (channels,):
        return False
    first = next(s.input_shape for s in steps if s.input_shape is not None)
    # TNT cuts the image into patches first: whatever no weights have touched is still the image.
    before = takewhile(lambda s: s is not step, steps)
    return shape[-2:] == first[-2:] or not any(_has_weights(s.module) for s in before)


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def map_area(shape: tuple[int, ...] | None) -> int:
    """Number of pixels of a map, (…, H, W); 0 for what is no map."""
    return shape[-1] * shape[-2] if shape is not None and len(shape) in (3, 4) else 0


def flat_name(name: str) -> str:
    """A dotted name as timm's extractors write it."""
    return name.replace(".", "_")


def match_names(names: Iterable[str], extractors: Iterable[str]) -> dict[str, str]:
    """Map names in an extractor to those of the classifier; layers that the extractor lacks are left out."""
    names = list(names)
    there = {flat_name(name): name for name in extractors}
    for prefix in PREFIXES:
        found = {there[key]: name for name in names if (key := prefix + flat_name(name)) in there}
        if found:
            return found
    return {}
