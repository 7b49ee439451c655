"""Plots of training, attention and robustness; every function returns a matplotlib figure and opens no window.

Whether they can be drawn is asked here, before any work is done: their libraries are of the extra `plots`.
"""

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
