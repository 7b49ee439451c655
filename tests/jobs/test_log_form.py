"""Logs are for a person on a terminal, and for machines elsewhere, unless somebody says which."""

import io

import pytest

from tcnn_jobs.logs import form_on


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "asked", "form"),
    [
        (Terminal(), "auto", "console"), (io.StringIO(), "auto", "json"), (Terminal(), "json", "json"),
        (io.StringIO(), "console", "console"),
    ],
)  # fmt: skip
def test_the_form_suits_the_reader(stream: io.StringIO, asked: str, form: str) -> None:
    assert form_on(stream, asked) == form
