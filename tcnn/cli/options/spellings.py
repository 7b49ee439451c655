"""How values and options may be typed: short options, those of timm's scripts, names of a release ago, image sizes."""

import ast
import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from tcnn.errors import RequestError

SPELLINGS = {
    "--out": ("-o",), "--force": ("-f",), "--data": ("-d",), "--batch-size": ("-b",), "--workers": ("-j",),
    "--epochs": ("-e",), "--size": ("-s", "--img-size"),
}  # fmt: skip
"""-b, -j and --img-size are timm's, too."""
TAKES_TIMMS = ("convert", "evaluate", "export", "finetune", "plan", "predict", "verify")
"""Commands that read timm's spellings (`timms`)."""


def add(command: Any) -> None:
    """Give a command's options their other spellings."""
    for option in command.params:
        wanted = next((SPELLINGS[name] for name in option.opts if name in SPELLINGS), ())
        option.opts += [spelling for spelling in wanted if spelling not in option.opts]


def processes(nproc: int | None, num_workers: int | None) -> int:
    """Processes of `--nproc`, or of `--num-workers`, its name in 0.1; raises `RequestError` if both are given."""
    if num_workers is None:
        return nproc or 1
    if nproc is not None:
        raise RequestError("--num-workers: is the old name of --nproc; give --nproc alone")
    typer.echo("--num-workers is called --nproc now; the old name goes with 0.3 (loaders are --workers)", err=True)
    return num_workers


def timms(arguments: list[str]) -> list[str]:
    """timm's arguments as our commands take them: `--amp` without a value, `--amp-dtype`, several `--model-kwargs`."""
    words, made = list(arguments), []
    kind = "float16"  # timm's own default
    if "--amp" in words and "--amp-dtype" in words[:-1]:
        place = words.index("--amp-dtype")
        kind = words[place + 1]
        del words[place : place + 2]
    several = False
    for place, word in enumerate(words):
        following = words[place + 1] if place + 1 < len(words) else "-"
        made.append(word)
        if word == "--amp" and not _means_dtype(following):
            made.append(kind)
        several = word == "--model-kwargs" or (several and bool(_KWARG.fullmatch(word)))
        if several and _KWARG.fullmatch(word) and _KWARG.fullmatch(following):
            made.append("--model-kwargs")
    return made


def _means_dtype(word: str) -> bool:
    """Whether what stands behind `--amp` is meant as its value, misspelt or not, and not as a model.

    What lies there under a name that is near a dtype's, as a run called `float32-run`, is a model.
    """
    lower = word.lower()
    misspelt = (
        not set("/.:") & set(word)
        and not Path(word).exists()
        and difflib.get_close_matches(lower, ("float32", "float16", "bfloat16"), 1, 0.7)
    )
    return bool(_DTYPE.fullmatch(lower) or misspelt)


_DTYPE = re.compile(r"auto|half|double|[bt]?(f|fp|float)\d+|int\d+")
_KWARG = re.compile(r"[A-Za-z_]\w*=.*")


def model_arguments(given: Iterable[str] | None) -> dict[str, Any]:
    """Arguments of `timm.create_model`, as timm reads them: Python's literals, anything else as text.

    Raises `RequestError` for what is no argument, and for those by which timm would read other files.
    """
    from tcnn.checkpoints.files import FORBIDDEN

    found: dict[str, Any] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise RequestError(f"--model-kwargs: expected KEY=VALUE, found {text!r}")
        if key in _OTHER_OPTIONS or FORBIDDEN.fullmatch(key):
            raise RequestError(
                f"--model-kwargs: {key} is not an argument of the model; {_OTHER_OPTIONS.get(key, _WEIGHTS)}"
            )
        if key in found:
            raise RequestError(f"--model-kwargs: {key} is given twice, {found[key]!r} and {value}; give one of the two")
        try:
            found[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[key] = value
    return found


_WEIGHTS = "its weights are those of its name, or of --weights FILE"
_OTHER_OPTIONS = {"name": _WEIGHTS, "model_name": _WEIGHTS, "weights": _WEIGHTS, "say": _WEIGHTS, "found": _WEIGHTS}


def source_arguments(given: Iterable[str] | None) -> dict[str, Any]:
    """Arguments of a CNN that is about to be converted; raises `RequestError` for a setting of the conversion."""
    from tcnn.config import ConversionConfig
    from tcnn.config.conversion import OF_TRAINING

    found = model_arguments(given)
    for key in found:
        if key in ConversionConfig.model_fields or key == "num_classes":
            whose = "has an option of its own" if key == "num_classes" else "is a setting of the conversion"
            raise RequestError(f"--model-kwargs: {key} {whose}: --{key.replace('_', '-')}")
        if key in OF_TRAINING or key.endswith(("drop_rate", "drop_path_rate", "drop_block_rate")):
            raise RequestError(
                f"--model-kwargs: {key} is a training argument, not kept in converted files; see --set of tcnn finetune"
            )
    return found


def sides(text: str) -> tuple[int, int]:
    """The (height, width) of one size; raises `RequestError`."""
    parts = [part.strip() for part in text.lower().replace("×", "x").split("x")]
    if len(parts) > 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise RequestError(f"--size: expected pixels as 224 or 224x160 (height × width), found {text!r}")
    return int(parts[0]), int(parts[-1])


def image_size(text: str | None) -> int | tuple[int, int] | None:
    """One size as a configuration has it: a side, (height, width), or None where nothing was typed."""
    if text is None:
        return None
    height, width = sides(text)
    return (height, width) if "x" in text.lower().replace("×", "x") else height


def several_sizes(text: str | None) -> tuple[tuple[int, int], ...]:
    """`160,224x192` → ((160, 160), (224, 192)); raises `RequestError`."""
    return () if text is None else tuple(sides(part) for part in text.split(","))
