"""`tcnn jobs …`, or another group, inside the test's process: its exit code, and what it printed."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tcnn.cli.main import main


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def error(self, code: int) -> str:
        """The one line of an error, and nothing beside it."""
        assert (self.code, self.out) == (code, ""), self
        assert self.err.startswith("error: ")
        assert self.err.count("\n") == 1
        return self.err


Run = Callable[..., Result]


def runner(capsys: pytest.CaptureFixture[str], group: str = "jobs") -> Run:
    """What runs one command after the other."""

    def run(*arguments: object) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([group, *map(str, arguments)])
        out, err = capsys.readouterr()
        return Result(int(ended.value.code or 0), out, err)

    return run
