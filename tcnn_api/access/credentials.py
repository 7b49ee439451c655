"""Credentials that the database holds, remembered for seconds: changes of them count without a restart.

They are API keys, and links to one job.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import structlog
from anyio import to_thread

from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.model.accounts import ApiKey, Share, digest
from tcnn_jobs.store import Store

log = structlog.get_logger("tcnn.api")

LIFE = 3.0
"""Seconds for which what the database said of a key or a link is believed."""
MOST_KEYS, MOST_LINKS = 10_000, 1000
"""Those that are remembered."""
PATIENCE = 0.5
"""Seconds that a request waits at most for a key's use to be written down; it is tried again at the next look."""


Credential = TypeVar("Credential", ApiKey, Share)


class _Known(NamedTuple, Generic[Credential]):
    credential: Credential | None
    """None of one that has ended: it was revoked, has expired, or was deleted."""
    until: float


class Memory(Generic[Credential]):
    """What the database said of secrets that are, or were, a credential's; of guessed ones nothing is kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[str, _Known[Credential]] = OrderedDict()

    async def find(self, secret: str, look: Callable[[str], Credential | None]) -> Credential | None:
        """The valid credential of this secret; raises what `look` raises, which gets the digest.

        One request asks, and while it waits the others believe what was known: so at most `LIFE` and the time of one
        look pass before a revoked credential is refused.
        """
        of, now = digest(secret), time.monotonic()
        known = self._known.get(of)
        if known is not None:
            if now < known.until:
                return known.credential
            self._known[of] = known._replace(until=now + LIFE)
        try:
            found = await to_thread.run_sync(look, of)
        except BaseException:
            if known is not None:  # it is as much in use as before, and the next request asks again
                self._known[of] = known._replace(until=0.0)
            raise
        if found is None and known is None:
            return None
        found = found if found is not None and found.valid else None
        self._known[of] = _Known(found, time.monotonic() + LIFE)
        self._known.move_to_end(of)
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return found

    def was_used(self, secret: str) -> bool:
        """Whether it was a valid credential's when it was last looked for here."""
        known = self._known.get(digest(secret))
        return known is not None and known.credential is not None

    def has_ended(self, secret: str) -> bool:
        """Whether it was the secret of a credential that had ended when it was last looked for here."""
        known = self._known.get(digest(secret))
        return known is not None and known.credential is None


class StoredKeys:
    """What this server knows of the keys in the database; before `open` there are none."""

    def __init__(self) -> None:
        self._store: Store | None = None
        self.memory: Memory[ApiKey] = Memory(MOST_KEYS)
        self._any, self._any_until = False, 0.0

    def open(self, store: Store) -> None:
        """Look from now on, beginning with whether there are keys at all; raises `StoreUnavailable`."""
        self._store = store
        self._any = self._any or store.has_keys()

    @property
    def known(self) -> bool:
        """Whether there was a key at the last look."""
        return self._any

    async def there(self) -> bool:
        """Whether a key was ever made. Once there was one, that stays so, whatever becomes of it."""
        if self._store is None or self._any or time.monotonic() < self._any_until:
            return self._any
        self._any_until = time.monotonic() + LIFE
        try:
            self._any = await to_thread.run_sync(self._store.has_keys)
        except StoreUnavailable as error:  # where no key is needed, much can be answered without a database
            log.warning("keys not looked at", error=str(error))
        return self._any

    async def find(self, secret: str) -> ApiKey | None:
        """The valid key of this secret; raises `StoreUnavailable`. A revoked one is refused after `LIFE` seconds."""
        return None if self._store is None or not secret else await self.memory.find(secret, self._look)

    def _look(self, look: str) -> ApiKey | None:
        assert self._store is not None  # noqa: S101
        found = self._store.find_key(look)
        if found is not None and found.valid:
            try:
                self._store.note_use(found.id, PATIENCE)
            except StoreUnavailable as error:
                log.info("use of a key not noted", key=found.id, error=str(error))
        return found


class SharedLinks:
    """What this server knows of links; before `open` there are none."""

    def __init__(self) -> None:
        self._store: Store | None = None
        self.memory: Memory[Share] = Memory(MOST_LINKS)

    def open(self, store: Store) -> None:
        """Look from now on."""
        self._store = store

    async def find(self, secret: str) -> Share | None:
        """The valid link of this secret; raises `StoreUnavailable`. A revoked one is refused after `LIFE` seconds."""
        return None if self._store is None else await self.memory.find(secret, self._store.find_share)
