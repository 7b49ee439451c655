"""Catalogue of timm's models and tcnn's own: which can be converted or initialised, which layers, and why not.

timm's are in `catalogue.json`, which is generated (``python -m tcnn.conversion.describe``), checked by a test, and read
without torch, so that a command or a server can answer at once. Models are found under the names that people know them
by, too: `timm/resnet50d.ra2_in1k`, `t_resnet50d`.
"""

import difflib
import itertools
import json
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from functools import cache
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from tcnn.errors import NothingToConvertError, UnknownModelError, WeightsError
from tcnn.files import path_of

POPULAR = (
    "resnet50", "resnet18", "resnet34", "resnet101", "convnext_tiny", "efficientnet_b0", "mobilenetv3_large_100",
    "resnet50d", "convnext_small", "convnext_base", "regnety_032", "resnext50_32x4d", "densenet121", "vgg16",
    "wide_resnet50_2", "resnet152", "mobilenetv2_100", "efficientnet_b3", "efficientnetv2_s", "convnextv2_tiny",
)  # fmt: skip
"""Models that most people look for, the most wanted first."""
PATH = Path(str(files("tcnn.zoo"))) / "catalogue.json"
WEIGHTS_FILES = frozenset({".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".tar"})
"""What files of weights are called, which no model is."""
SUFFIXES = WEIGHTS_FILES - {".safetensors"}
"""What files of `torch.save` are called; `model_best.pth.tar` is timm's."""
ATTENTIVE = {
    "cordonnier_quadratic": 12_086_844, "cordonnier_gaussian": 12_086_952, "cordonnier_learned": 12_182_682,
    "cordonnier_learned_content": 29_441_082, "cordonnier_quadratic_tiny": 324_396, "cordonnier_gaussian_tiny": 324_504,
    "cordonnier_learned_tiny": 339_594, "cordonnier_learned_content_tiny": 778_506,
}  # fmt: skip
"""tcnn's own networks, and the parameters of each with its ten classes."""
TAKEN_BY: Mapping[str, tuple[str, ...]] = {
    "vision_transformer": ("impulse", "mimetic"),
    "deit": ("impulse", "mimetic"),
    "convit": ("convolution", "random"),
    "convmixer": ("impulse",),
}
"""Which initialisations the models of a timm family take (`tcnn.vit`), beside `default`, which all do. A model may
still be refused, as one without positional embedding is."""


class Entry(BaseModel):
    """One timm model. Parameters are counts; FLOPs are 2 × multiply-adds of one image at `input_size`, stride kept."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    name: str
    family: str
    input_size: tuple[int, int, int]
    parameters: int
    flops: int | None = None
    weights: tuple[str, ...] = ()
    convertible: bool
    reason: str | None = None
    stage: str | None = None
    layers: int = 0
    kernels: tuple[str, ...] = ()
    converted_parameters: int | None = None
    converted_flops: int | None = None
    stride_removable: bool = False
    stages: tuple[tuple[str, int], ...] = ()
    """The label of every stage, and how many of its convolutions can be converted."""
    convolutions: tuple[str, ...] = ()
    """Names of the convolutions that can be converted, consecutive ones as one: `layer4.{0-2}.conv2`."""
    widest: int = 0
    """Most channels that one of them reads: wider heads tell nothing more."""

    @property
    def registered_as(self) -> str | None:
        """Name of the converted model in timm's registry, or None."""
        return registered_name(self.name) if self.convertible else None


def registered_name(architecture: str) -> str:
    """Name of a converted timm architecture in timm's registry: `t_resnet50d`."""
    return architecture if architecture.startswith("t_") else f"t_{architecture}"


@cache
def entries() -> dict[str, Entry]:
    """The catalogue by timm name: timm's models and tcnn's own networks."""
    data = json.loads(PATH.read_text(encoding="utf-8"))
    return {row["name"]: Entry.model_validate(row) for row in (*data["models"], *_attentive())}


def _attentive() -> list[dict[str, Any]]:
    """Entries of tcnn's own networks, as `catalogue.json` has those of timm's models."""
    return [
        {
            "name": name, "family": "attentive", "input_size": (3, 32, 32), "parameters": parameters,
            "convertible": False,
            "reason": f"{name}: has no convolution to convert, it is attention throughout; train it as it is: "
            f"tcnn finetune {name} --no-convert --no-pretrained",
        }
        for name, parameters in ATTENTIVE.items()
    ]  # fmt: skip


def timm_version() -> str:
    """The timm version of the catalogue."""
    return str(json.loads(PATH.read_text(encoding="utf-8"))["timm"])


def folded(names: Iterable[str]) -> tuple[str, ...]:
    """Names that differ in one number, and are consecutive in it, as one: `layer4.{0-2}.conv2`; see `unfolded`."""
    found = [tuple(re.split(r"(\d+)", name)) for name in names]
    for place in range(max(map(len, found), default=0) - 2 + 1, 0, -1):
        if place % 2 == 0:
            continue
        alike: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        for parts in found:
            key = (*parts[:place], "", *parts[place + 1 :]) if place < len(parts) else (*parts, str(place))
            alike.setdefault(key, []).append(parts)
        found = [one for group in alike.values() for one in _one_of(group, place)]
    return tuple("".join(parts) for parts in found)


def _one_of(group: list[tuple[str, ...]], place: int) -> list[tuple[str, ...]]:
    numbers = [parts[place] for parts in group if place < len(parts)]
    first = numbers[0] if len(group) > 1 and len(numbers) == len(group) else ""
    if not first.isdecimal() or numbers != [str(int(first) + step) for step in range(len(group))]:
        return group
    return [(*group[0][:place], f"{{{first}-{numbers[-1]}}}", *group[0][place + 1 :])]


def unfolded(folds: Iterable[str]) -> list[str]:
    """The names that were folded."""
    names = []
    for fold in folds:
        parts = [
            [str(number) for number in range(int(part[1]), int(part[2]) + 1)]
            if (part := re.fullmatch(r"\{(\d+)-(\d+)\}", text))
            else [text]
            for text in re.split(r"(\{\d+-\d+\})", fold)
        ]
        names += ["".join(each) for each in itertools.product(*parts)]
    return names


def search(query: str = "") -> list[Entry]:
    """Entries whose name contains every word of the query; `*` and `?` match as in a shell."""
    words = query.lower().split()
    return [
        entry
        for entry in entries().values()
        if all(fnmatch(entry.name, word) if any(c in word for c in "*?[") else word in entry.name for word in words)
    ]


def ranked(query: str) -> list[Entry]:
    """What `search` finds, in the order in which people mean it: exactly so named, names that begin so, and of these
    and of all others those first that are used most.
    """
    word = query.strip().lower()

    def rank(entry: Entry) -> tuple[bool, bool, int, str]:
        used = POPULAR.index(entry.name) if entry.name in POPULAR else len(POPULAR)
        return entry.name != word, not entry.name.startswith(word), used, entry.name

    return sorted(search(query), key=rank)


def check(name: str, default_choice: bool = True) -> Entry | None:
    """Check a model name by the catalogue, before torch is loaded.

    Args:
        default_choice: whether the last stage is to be converted; another stage may be convertible although it is not.

    Returns the entry, or None when the catalogue cannot tell (a directory, a hub repository, another timm's model).
    Raises `UnknownModelError` or `NothingToConvertError`.
    """
    name = name.removeprefix("timm/")
    if ":" in name or "/" in name or "\\" in name:
        return None
    architecture, _, tag = name.partition(".")
    entry = entries().get(architecture) or _made_from(architecture)
    if entry is None:
        if metadata.version("timm") != timm_version():
            return None
        raise UnknownModelError(unknown(name, list(entries())))
    if tag and tag not in entry.weights:
        raise UnknownModelError(unknown_tag(name, entry.weights))
    if not entry.convertible and default_choice:
        raise NothingToConvertError(entry.reason or f"{name}: nothing to convert")
    return entry


def _made_from(architecture: str) -> Entry | None:
    """The entry of the CNN that a name of timm's registry is the T-CNN of, or None."""
    entry = entries().get(architecture.removeprefix("t_"))
    return entry if entry is not None and entry.registered_as == architecture else None


def unknown(name: str, known: list[str]) -> str:
    """Error message for an unknown model name, with the closest known ones; a file's name is that of a file missing."""
    if Path(name).suffix.lower() in WEIGHTS_FILES:
        there = f"a file, where a model's name is expected; weights stand beside it: MODEL --weights {name}"
        return f"{name}: {there if Path(name).is_file() else 'no such file'}"
    close = difflib.get_close_matches(name.partition(".")[0], known, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(close)}?" if close else "`tcnn models` lists what can be converted"
    return f"{name}: no timm model of this name; {hint}"


def unknown_tag(name: str, tags: Iterable[str]) -> str:
    """Error message for an unknown weights tag, with the known ones."""
    architecture, _, tag = name.partition(".")
    return (
        f"{name}: {architecture} has no weights tagged {tag!r}; known tags: {', '.join(filter(None, tags)) or 'none'}"
    )


def is_weights_file(name: str | Path) -> bool:
    """Whether a name is that of a file written by `torch.save`."""
    return Path(name).suffix.lower() in SUFFIXES and Path(name).is_file()


def weights_file(given: object) -> Path:
    """The file of weights that was named; raises `WeightsError` where there is none."""
    path = path_of(given, "weights")
    if not path.is_file():
        raise WeightsError(f"{path}: expected a weights file, found {'a directory' if path.is_dir() else 'nothing'}")
    return path


def canonical(name: str) -> str:
    """The timm name of a model of the Hub's organisation timm (`timm/resnet18.a1_in1k`); other names unchanged."""
    short = name.removeprefix("timm/")
    return short if short.partition(".")[0] in entries() or is_converted(short) else name


def is_converted(name: str) -> bool:
    """Whether a name is that of a T-CNN in timm's registry: `t_resnet50d`, with a tag or without."""
    base = name.partition(".")[0]
    entry = entries().get(base.removeprefix("t_"))
    return entry is not None and entry.name != base and entry.registered_as == base


def cnn_of(name: str) -> str:
    """The CNN that a T-CNN of timm's registry is made from, `resnet50d` of `t_resnet50d`; other names unchanged.

    A file or directory of that name, such as what `tcnn convert resnet50d t_resnet50d` wrote, is meant before timm's.
    """
    if Path(name).exists():
        return name
    name = canonical(name)
    return name.removeprefix("t_") if is_converted(name) else name


def architecture(name: str) -> str:
    """The architecture alone, of whatever spelling: without `hf-hub:timm/`, `t_` and a tag that the catalogue knows."""
    short = cnn_of(name.removeprefix("hf-hub:").removeprefix("hf_hub:"))
    base, _, tag = short.partition(".")
    entry = entries().get(base)
    return base if entry is not None and tag in entry.weights else short


def no_model(name: str) -> str:
    """What is said of a path at which no model lies: whether anything does, and what else it may have been."""
    if Path(name).exists():
        return f"{name}: neither a checkpoint nor a directory of a run or a model; name one of these, or a timm name"
    return f"{name}: no such file or directory; a timm name has no slash, a repository is hf-hub:{name}"
