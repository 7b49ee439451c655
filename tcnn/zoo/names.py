"""Names of models as people know them: `timm/resnet50d.ra2_in1k`, `t_resnet50d`, and what they stand for."""

from pathlib import Path

from tcnn.zoo import catalogue

SUFFIXES = catalogue.WEIGHTS_FILES - {".safetensors"}
"""What files of `torch.save` are called; `model_best.pth.tar` is timm's."""


def is_weights_file(name: str | Path) -> bool:
    """Whether a name is that of a file written by `torch.save`."""
    return Path(name).suffix.lower() in SUFFIXES and Path(name).is_file()


def canonical(name: str) -> str:
    """The timm name of a model of the Hub's organisation timm (`timm/resnet18.a1_in1k`); other names unchanged."""
    short = name.removeprefix("timm/")
    return short if short.partition(".")[0] in catalogue.entries() or is_converted(short) else name


def is_converted(name: str) -> bool:
    """Whether a name is that of a T-CNN in timm's registry: `t_resnet50d`, with a tag or without."""
    base = name.partition(".")[0]
    entry = catalogue.entries().get(base.removeprefix("t_"))
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
    entry = catalogue.entries().get(base)
    return base if entry is not None and tag in entry.weights else short


def no_model(name: str) -> str:
    """What is said of a path at which no model lies: whether anything does, and what else it may have been."""
    if Path(name).exists():
        return f"{name}: neither a checkpoint nor a directory of a run or a model; name one of these, or a timm name"
    return f"{name}: no such file or directory; a timm name has no slash, a repository is hf-hub:{name}"
