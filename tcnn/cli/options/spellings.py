"""Other spellings of the options that are typed most, the same in every command: short ones, and timm's."""

from typing import Any

SPELLINGS = {
    "--out": ("-o",), "--force": ("-f",), "--data": ("-d",), "--batch-size": ("-b",), "--workers": ("-j",),
    "--epochs": ("-e",), "--size": ("-s", "--img-size"),
}  # fmt: skip
"""-b, -j and --img-size are timm's, too."""


def add(command: Any) -> None:
    """Give a command's options their other spellings."""
    for option in command.params:
        wanted = next((SPELLINGS[name] for name in option.opts if name in SPELLINGS), ())
        option.opts += [spelling for spelling in wanted if spelling not in option.opts]
