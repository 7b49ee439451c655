"""Dependencies of the routes: store, home, settings, the authenticated tenant, idempotency key, query parameters.

All of them are coroutines: a plain function would take a turn on a thread, for every one of them.
"""

import difflib
import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from anyio import to_thread
from fastapi import Depends, Header, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.params import Query
from fastapi.security import HTTPBearer
from prometheus_client import CollectorRegistry

from tcnn.config.base import LONGEST_KEY
from tcnn.errors import RequestError
from tcnn_api.access.keys import LOCAL, Principal, missing
from tcnn_api.errors import MOST_ERRORS, NotOwn
from tcnn_api.pools import Pools
from tcnn_api.responses.stream import Still, Streams, prefers_stream
from tcnn_api.settings import ApiSettings
from tcnn_jobs.artifacts.base import Artifacts
from tcnn_jobs.artifacts.layout import Home, checked
from tcnn_jobs.confined.explorers import Explorers
from tcnn_jobs.confined.room import Rooms
from tcnn_jobs.errors import JobNotFound
from tcnn_jobs.model.accounts import Scope
from tcnn_jobs.model.jobs import IdempotencyKey
from tcnn_jobs.model.naming import no_such
from tcnn_jobs.store import Store


@dataclass
class Service:
    """What one server shares among its requests."""

    settings: ApiSettings
    home: Home
    store: Store
    registry: CollectorRegistry
    streams: Streams
    explorers: Explorers
    artifacts: Artifacts
    pools: Pools
    rooms: Rooms


_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="ApiKey",
    description=(
        "`Authorization: Bearer KEY`, with the scope `read` for GET and `submit` for POST and DELETE, or `admin` to "
        "see and cancel what all tenants have; not needed on a server without keys."
    ),
)


async def service(request: Request) -> Service:
    """The server's shared parts, which the lifespan made."""
    found: Service = request.app.state.service
    return found


ServiceDep = Annotated[Service, Depends(service)]


async def _store(parts: ServiceDep) -> Store:
    return parts.store


async def _tenant(request: Request) -> str:
    """Whose request it is, `Principal.counted_as`; the middleware has looked at the key before anything of the body
    was read.
    """
    return str(request.state.tenant)


async def _reach(request: Request) -> str | None:
    """Whose jobs and uploads may be seen: the tenant's own, or with the scope `admin` everybody's (None)."""
    principal: Principal = request.state.principal
    return None if Scope.ADMIN in principal.scopes else principal.tenant


async def _still(request: Request) -> Still:
    """Tells whether the key of the request is still valid."""
    found: Still = request.state.still
    return found


async def _admin_only(request: Request) -> None:
    principal: Principal = request.state.principal
    if Scope.ADMIN not in principal.scopes:
        raise missing(Scope.ADMIN, principal)


async def _operator_only(request: Request) -> None:
    """An admin; on a server without keys, whoever is on this machine."""
    if request.state.principal != LOCAL:
        await _admin_only(request)


async def _job_id(
    id: Annotated[str, Path(description="A job's id.", examples=["job_0123456789abcdef01234567"])],
) -> str:
    """An id of the right form, for no other can be anybody's."""
    try:
        return checked(id)
    except RequestError as error:
        raise JobNotFound(no_such("job", id, "jobs")) from error


StoreDep = Annotated[Store, Depends(_store)]
Tenant = Annotated[str, Depends(_tenant)]
Reach = Annotated[str | None, Depends(_reach)]
OfTenant = Annotated[
    str | None, Query(description="Only those of this tenant; another tenant's require the scope `admin`.")
]
StillValid = Annotated[Still, Depends(_still)]
AdminOnly = Depends(_admin_only)
OperatorOnly = Depends(_operator_only)
JobId = Annotated[str, Depends(_job_id)]


def within(reach: str | None, tenant: str | None, principal: Principal) -> str | None:
    """Whose a list has: what may be seen, or one tenant's of it. Raises `MissingScope` for another's."""
    if tenant is None or reach in (None, tenant):
        return tenant or reach
    raise missing(Scope.ADMIN, principal)


async def _changer(job: JobId, store: StoreDep, own: Tenant, reach: Reach) -> str:
    """Whose jobs the request may change: the tenant's own. Whoever sees everybody's hears why not another's."""
    if reach is None:
        with suppress(JobNotFound):
            found = await to_thread.run_sync(store.get, job)
            refuse_anothers("job", found.owner, own)
    return own


def refuse_anothers(noun: str, owner: str, own: str) -> None:
    """Raise `NotOwn` for what another tenant has."""
    if owner != own:
        may = "look at it and cancel it" if noun == "job" else "look at it"
        raise NotOwn(f"expected a {noun} of {own}, found one of {owner}: this key may {may}; use a key of {owner}")


async def _streams(request: Request) -> bool:
    return prefers_stream(", ".join(request.headers.getlist("accept")))


Changer = Annotated[str, Depends(_changer)]
Streamed = Annotated[bool, Depends(_streams)]
"""Whether events are to be streamed, rather than listed."""
AUTHENTICATED = [Depends(_bearer)]
"""Documents the key in OpenAPI: for `APIRouter(dependencies=AUTHENTICATED)`."""

KeyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[\x21-\x7e]{1,255}$",
        description="1 to 255 visible ASCII characters. A repeated request with the same key is executed only once.",
        examples=["7c1d7a52-0f0b-4c3e-9d7e-0d2f7f6f5b1a"],
    ),
]


def idempotency_key(request: Request, owner: str, key: str | None, body: bytes) -> IdempotencyKey | None:
    """The key with the digest of what it stands for; `body` may itself be a digest of what was streamed."""
    if key is None:
        return None
    digest = hashlib.sha256(b"\0".join((request.method.encode(), request.url.path.encode(), body))).hexdigest()
    return IdempotencyKey(owner, key, digest)


async def _json_key(request: Request, owner: Tenant, key: KeyHeader = None) -> IdempotencyKey | None:
    return idempotency_key(request, owner, key, await request.body())


Idempotency = Annotated[IdempotencyKey | None, Depends(_json_key)]
"""For routes with a JSON body or none; one that streams its body takes `KeyHeader` and calls `idempotency_key`."""


async def parameters(request: Request) -> None:
    """Refuse query parameters that the route has not, and a second value of those that have one.

    Else a misspelt filter would list everything. Not on pages that need no key: browsers, proxies and probes put their
    own behind those.
    """
    if not request.query_params or getattr(request.state, "principal", None) is None:
        return
    takes, given = taken(request.scope["endpoint"]), request.query_params
    unknown = [name for name in given if name not in takes]
    # Of a thousand, the nearest parameter is looked for of those that will be told.
    wrong = [(name, _unknown(name, takes) if place < MOST_ERRORS else "") for place, name in enumerate(unknown)]
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
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5) if len(name) <= LONGEST_KEY else []
    return f"no such parameter; {f'did you mean {near[0]}? There ' if near else 'there '}are {', '.join(known)}"
