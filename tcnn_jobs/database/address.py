"""Addresses of databases: what `TCNN_DATABASE_URL` may be, and what of it may be shown to anybody."""

import re
from difflib import get_close_matches

from sqlalchemy import URL, make_url
from sqlalchemy import exc as sql

from tcnn.errors import RequestError

EXPECTED = "TCNN_DATABASE_URL: expected sqlite:///FILE or postgresql://USER@HOST/NAME"
_SHOWN = frozenset({"host", "hostaddr", "port", "dbname", "user", "service"})
"""Parameters that say where a database is. Of all others some are secrets, and a later libpq may have more."""
_REPEATED = frozenset({"host", "port"})
_MISREAD = re.compile(
    r'(invalid ("?\w+"? value|port number|integer value|SSL protocol version range)|weak sslmode '
    r'|"min_protocol_version" is greater|could not parse network address |negative require_auth )[^\n]*'
    r'|keepalives parameter must be an integer|definition of service "[^"\n]*" not found'
)
"""What libpq 12 to 18 say of values that they cannot read, or that contradict each other."""


def parsed(url: str) -> URL:
    """The URL with its driver; raises `RequestError`. What follows `sqlite:///` is a path, whatever is in it."""
    scheme, _, path = url.partition(":///")
    if scheme == "sqlite":
        if path in ("", ":memory:"):
            raise RequestError(f"{EXPECTED}; found no file name, and a queue in memory would be lost")
        return URL.create("sqlite+pysqlite", database=path)
    try:
        found = make_url(url)
    except (sql.ArgumentError, ValueError):
        raise RequestError(EXPECTED) from None
    if found.drivername not in ("postgresql", "postgresql+psycopg"):
        raise RequestError(f"{EXPECTED}; found {found.drivername}://")
    if {*"@&="} & set(found.host or ""):  # of a password, which nobody shall see
        raise RequestError(f"{EXPECTED}; found @ in a password or a parameter, where it must be written as %40")
    _check(found)
    return found.set(drivername="postgresql+psycopg")


def shown(url: URL) -> str:
    """The address for messages, without anything secret."""
    if url.get_backend_name() == "sqlite":
        return url.database or ""
    places = {name: value for name, value in url.query.items() if name in _SHOWN}
    return url.set(query=places).render_as_string(hide_password=True)


def misread(error: Exception) -> RequestError | None:
    """What is wrong with a parameter, if that is why libpq did not try to connect."""
    found = _MISREAD.search(str(error))
    return None if found is None else RequestError(f"TCNN_DATABASE_URL: {found[0]}")


def _check(url: URL) -> None:
    """Raise `RequestError` for a parameter that libpq does not know, for it is passed on."""
    if not url.query:
        return
    from psycopg.pq import Conninfo

    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    for name, value in url.query.items():
        if name not in known:
            near = get_close_matches(name, sorted(known), 1, cutoff=0.8)
            meant = f"did you mean {near[0]}?" if near else "libpq has others, such as sslmode and sslrootcert"
            raise RequestError(f"TCNN_DATABASE_URL: PostgreSQL has no connection parameter {name!a}; {meant}")
        if not isinstance(value, str) and name not in _REPEATED:
            raise RequestError(f"TCNN_DATABASE_URL: expected one {name}, found {len(value)}")
    timeout, encoding = url.query.get("connect_timeout", "1"), url.query.get("client_encoding", "utf8")
    if not re.fullmatch("-?[0-9]+", str(timeout)):
        raise RequestError(f"TCNN_DATABASE_URL: expected connect_timeout in whole seconds, found {timeout!a}")
    if str(encoding).lower().replace("-", "") not in ("utf8", "unicode"):
        raise RequestError(f"TCNN_DATABASE_URL: expected client_encoding=utf8, found {encoding!a}")
