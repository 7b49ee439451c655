"""Errors and advice of tcnn in the words of a request: whoever reads them in an answer has no command line."""

import re

_ADVICE: tuple[tuple[str, str], ...] = (
    (r"go on with --resume(?: --out \S+)? --set ([\w.]+=[\w.]+)", r"run it again with \1"),
    (r"go on with --resume(?: --out [^\s;]+)?", "resume the job"),
    (
        r"give --weights FILE, or --no-pretrained for random ones",
        "upload a checkpoint of your own, or set pretrained to false for random weights",
    ),
    (r"\s*\(with --allow-changes\)", ""),
    (r"give the same ones, or --allow-changes", "give the same ones, or begin another job"),
    (r"use --preset (\w+)", r"use preset \1"),
    (r"--val DATASET", "val"),
    (r"--set ", ""),
    (r"`tcnn models` lists", "GET /models lists"),
)  # fmt: skip
_ARGUMENT = re.compile(r"(?<![\w-])--(?:no-)?([a-z]+(?:-[a-z]+)*)")
"""Any other option of a command is named as the request's field is."""


def for_requests(text: str) -> str:
    """The text without options of commands: `--batch-size 8` becomes `batch_size 8`."""
    for pattern, words in _ADVICE:
        text = re.sub(pattern, words, text)
    return _ARGUMENT.sub(lambda found: found[1].replace("-", "_"), text)
