"""What a request says behind its `?` is known to the route, and said once: else a misspelt filter would list it all."""

import difflib
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.params import Query


async def parameters(request: Request) -> None:
    """Refuse parameters that the route has not, and a second value of those that have one.

    Not on pages that need no key: browsers, proxies and probes put their own behind those.
    """
    if not request.query_params or getattr(request.state, "principal", None) is None:
        return
    takes, given = taken(request.scope["endpoint"]), request.query_params
    wrong = [(name, _unknown(name, takes)) for name in given if name not in takes]
    wrong += [
        (name, f"expected one value, found {len(given.getlist(name))}; ask for one after the other")
        for name in given
        if takes.get(name) is False and len(given.getlist(name)) > 1
    ]
    if wrong:
        raise RequestValidationError(
            [{"type": "value_error", "loc": ("query", name), "msg": message} for name, message in wrong]
        )


@cache
def taken(endpoint: Callable[..., Any]) -> dict[str, bool]:
    """The query parameters of a route's function, and whether each may have several values."""
    hints = get_type_hints(endpoint, include_extras=True)
    return {
        name: any(get_origin(kind) is list for kind in (hint.__origin__, *get_args(hint.__origin__)))
        for name, hint in hints.items()
        if get_origin(hint) is Annotated and any(isinstance(one, Query) for one in hint.__metadata__)
    }


def _unknown(name: str, known: dict[str, bool]) -> str:
    if not known:
        return "no such parameter, for there are none here; leave it out"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"no such parameter; {f'did you mean {near[0]}? There ' if near else 'there '}are {', '.join(known)}"
