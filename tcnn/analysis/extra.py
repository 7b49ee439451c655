"""Check that the libraries of the `plots` extra are installed, before any work is done."""

from importlib.util import find_spec

from tcnn.errors import EnvironmentFailure

NEEDED = ("matplotlib", "jinja2", "PIL")


def has_plots() -> bool:
    """Whether plots can be drawn here."""
    return not _missing()


def require_plots() -> None:
    """Raise `EnvironmentFailure` if plots cannot be drawn here."""
    if missing := _missing():
        raise EnvironmentFailure(f'pictures need {" and ".join(missing)}, not installed: pip install "tcnn[plots]"')


def _missing() -> list[str]:
    return [name for name in NEEDED if find_spec(name) is None]
