"""Short spellings of the options that are typed most, the same in every command."""

from typing import Any

SHORT = {
    "--out": "-o", "--force": "-f", "--data": "-d", "--batch-size": "-b", "--workers": "-j", "--epochs": "-e",
    "--size": "-s",
}  # fmt: skip
"""-b and -j are timm's, too."""


def add(command: Any) -> None:
    """Give a command's options their short spellings, where they have none."""
    for option in command.params:
        wanted = next((SHORT[name] for name in option.opts if name in SHORT), None)
        if wanted is not None and wanted not in option.opts:
            option.opts.append(wanted)
