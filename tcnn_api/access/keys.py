"""API keys of the settings: a key belongs to a tenant. Only digests are kept in memory."""

import hashlib
import hmac
from collections.abc import Iterable
from typing import NamedTuple

from tcnn.errors import RequestError
from tcnn_api.errors import MissingScope
from tcnn_api.settings import ApiSettings
from tcnn_jobs.model.accounts import USUAL, Scope

SHORTEST = 8
"""Characters of a key: what NIST SP 800-63B asks of a secret that attempts are counted of."""


class Principal(NamedTuple):
    """The authenticated caller. `key` names its key for logs: a stored key's id, or its place in the settings."""

    tenant: str
    key: str
    scopes: frozenset[Scope]
    job: str | None = None
    """Of a link's holder, who is nobody, the one job that it shows."""

    @property
    def counted_as(self) -> str:
        """The name under which requests count towards bounds: the tenant's, or of all its links together another one,
        which is no tenant's for it has spaces. So those who have links shut nobody out but each other, however many
        links there are.
        """
        return self.tenant if self.job is None else f"links of {self.tenant}"


def missing(wanted: Scope, principal: Principal) -> MissingScope:
    """What is said to a key that is not for something."""
    has = ", ".join(sorted(principal.scopes))
    return MissingScope(f"expected a key with the scope {wanted}, found one with {has}; use another key")


LOCAL = Principal("local", "none", USUAL)
"""The one tenant of a server without keys."""


class Keyring:
    """The keys of the settings: digests, and the tenant of each."""

    def __init__(self, holders: dict[bytes, Principal]) -> None:
        self._holders = holders
        self._used: set[bytes] = set()

    def __bool__(self) -> bool:
        return bool(self._holders)

    def find(self, key: str) -> Principal | None:
        """The owner of a key, or None. Every digest is compared in constant time, against timing attacks."""
        digest = _digest(key)
        found = None
        for known, principal in self._holders.items():
            if hmac.compare_digest(known, digest):
                found = principal
        if found is not None:
            self._used.add(digest)
        return found

    def was_used(self, key: str) -> bool:
        """Whether this key has been found right before, by this server."""
        return _digest(key) in self._used


def keyring(settings: ApiSettings) -> Keyring:
    """The keys that the settings name; raises `RequestError` with the place of what cannot be read, never a key."""
    holders: dict[bytes, Principal] = {}
    _add(holders, settings.api_keys, "TCNN_API_KEYS", "TCNN_API_KEYS: entry")
    path = settings.api_keys_file
    if path is not None:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"TCNN_API_KEYS_FILE={path}: expected a readable text file of `tenant:key`") from error
        entries = ("" if line.lstrip().startswith("#") else line.strip() for line in lines)
        _add(holders, entries, "TCNN_API_KEYS_FILE", f"{path}: line")
        if not holders:
            raise RequestError(f"TCNN_API_KEYS_FILE={path}: expected `tenant:key` in a line, found none")
    return Keyring(holders)


def _add(holders: dict[bytes, Principal], entries: Iterable[str], source: str, where: str) -> None:
    for place, entry in enumerate(entries, 1):
        if not entry:
            continue
        tenant, colon, key = entry.partition(":")
        if not (tenant and colon and key and entry.isascii() and entry.isprintable() and " " not in entry):
            raise RequestError(f"{where} {place}: expected tenant:key in ASCII without spaces")
        kind, colon, given = key.partition(":")
        if kind == "sha256" and colon:
            try:
                digest = bytes.fromhex(given)
            except ValueError:
                digest = b""
            if len(digest) != hashlib.sha256().digest_size:
                raise RequestError(f"{where} {place}: expected 64 hexadecimal digits after sha256:")
        else:
            if len(key) < SHORTEST:
                raise RequestError(
                    f"{where} {place}: expected a key of at least {SHORTEST} characters, found a shorter one"
                )
            digest = _digest(key)
        holder = holders.setdefault(digest, Principal(tenant, f"{source}:{place}", USUAL))
        if holder.tenant != tenant:
            raise RequestError(
                f"{where} {place}: another tenant has the same key as {tenant}; give every tenant its own"
            )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
