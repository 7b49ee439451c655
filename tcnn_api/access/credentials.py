"""Credentials that the database holds, remembered for seconds: changes of them count without a restart.

They are API keys, and links to one job.
"""

import time
from collections import OrderedDict
from typing import NamedTuple

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


class _Known(NamedTuple):
    key: ApiKey
    until: float


class StoredKeys:
    """What this server knows of the keys in the database; before `open` there are none."""

    def __init__(self) -> None:
        self._store: Store | None = None
        self._known: OrderedDict[str, _Known] = OrderedDict()
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
        """The valid key of this secret; raises `StoreUnavailable`.

        One request asks, and while it waits the others believe what was known: so at most `LIFE` and the time of one
        look pass before a revoked key is refused.
        """
        if self._store is None or not secret:
            return None
        look, now = digest(secret), time.monotonic()
        known = self._known.get(look)
        if known is not None:
            if now < known.until:
                return known.key
            self._known[look] = known._replace(until=now + LIFE)
        try:
            found = await to_thread.run_sync(self._look, look)
        except BaseException:
            self._known.pop(look, None)
            raise
        if found is None:
            self._known.pop(look, None)
        else:
            self._known[look] = _Known(found, time.monotonic() + LIFE)
            if len(self._known) > MOST_KEYS:
                self._known.popitem(last=False)
        return found

    def was_used(self, secret: str) -> bool:
        """Whether this key was valid when it was last looked for here."""
        return digest(secret) in self._known

    def _look(self, look: str) -> ApiKey | None:
        assert self._store is not None  # noqa: S101
        found = self._store.find_key(look)
        if found is not None:
            try:
                self._store.note_use(found.id, PATIENCE)
            except StoreUnavailable as error:
                log.info("use of a key not noted", key=found.id, error=str(error))
        return found


class SharedLinks:
    """What this server knows of links; before `open` there are none."""

    def __init__(self) -> None:
        self._store: Store | None = None
        self._known: OrderedDict[str, tuple[Share, float]] = OrderedDict()

    def open(self, store: Store) -> None:
        """Look from now on."""
        self._store = store

    async def find(self, secret: str) -> Share | None:
        """The valid link of this secret; raises `StoreUnavailable`. A revoked one is refused after `LIFE` seconds."""
        if self._store is None:
            return None
        look, now = digest(secret), time.monotonic()
        known, until = self._known.pop(look, (None, 0.0))
        if known is None or now >= until:
            known, until = await to_thread.run_sync(self._store.find_share, look), now + LIFE
        if known is not None:
            self._known[look] = known, until
            if len(self._known) > MOST_LINKS:
                self._known.popitem(last=False)
        return known
