"""Names of files that a locale cannot read, and a server's advice in the words of the command line."""

import pytest

from tcnn.errors import readable
from tcnn_jobs.errors import for_commands


def test_names_of_files_are_utf8_whatever_the_locale() -> None:
    assert readable("größe".encode().decode("ascii", "surrogateescape")) == "größe"
    assert readable("größe") == "größe"
    assert readable("a\udcff.png") == r"a\xff.png", "which is no text at all, and is refused as a class"
    assert readable("\ud800") == r"\ud800"


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("x: no such job; GET /jobs lists yours", "x: no such job; `tcnn jobs list` lists yours"),
        ("GET /models lists them, POST /checkpoints takes your own weights",
         "`tcnn models` lists them, `tcnn jobs upload PATH` takes your own weights"),
        ("j: no file of this name; GET /jobs/j/checkpoints lists them",
         "j: no file of this name; `tcnn jobs show j` lists them"),
        ("x: no such link; GET /jobs/j/shares lists yours", "x: no such link; `tcnn jobs share j --list` lists yours"),
        ("the model is a T-CNN already; POST /finetune with `model` takes it",
         "the model is a T-CNN already; `tcnn jobs submit finetune` with `model` takes it"),
    ],
)  # fmt: skip
def test_advice_on_the_command_line_has_no_http_verbs(told: str, expected: str) -> None:
    assert for_commands(told) == expected
