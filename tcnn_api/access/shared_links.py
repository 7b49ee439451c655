"""Links to one job: what the database says of one is believed for seconds, as of keys (`stored_keys`)."""

import time
from collections import OrderedDict

from anyio import to_thread

from tcnn_api.access.stored_keys import LIFE
from tcnn_jobs.model.accounts import Share, digest
from tcnn_jobs.store import Store

MOST = 1000
"""Links that are remembered."""


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
            if len(self._known) > MOST:
                self._known.popitem(last=False)
        return known
