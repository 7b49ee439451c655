"""Host names looked up where nobody has to wait for the end: an event loop whose lookups are left alone when given up.

`getaddrinfo` of the C library has no deadline and cannot be interrupted. asyncio runs it on a few threads that all
lookups share, and joins them before `asyncio.run` returns: a resolver that says nothing would hold every name after a
handful, and the caller for minutes. Here every lookup has a daemon thread of its own, the same name in flight is waited
for by all who ask, and whoever stops waiting is free at once.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

AT_ONCE = 200
"""Names that are looked up at once, given up or not; a resolver that never ends may cost no more threads than that."""

Arguments = tuple[Any, ...]
T = TypeVar("T")

_lock = threading.Lock()
_waiting: dict[Arguments, list[Callable[[Any, Exception | None], None]]] = {}
"""Who is to be told, by the arguments of each lookup that has not ended."""


class Loop(asyncio.SelectorEventLoop):
    """An event loop that can be closed though a lookup of its own has not ended."""

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[Any]:
        """As `socket.getaddrinfo`; an OSError when too many lookups have not ended."""
        found: asyncio.Future[list[Any]] = self.create_future()

        def settle(addresses: Any, problem: Exception | None) -> None:
            if found.done():  # whoever asked has stopped waiting
                return
            if problem is None:
                found.set_result(addresses)
            else:
                found.set_exception(problem)

        def told(addresses: Any, problem: Exception | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self.call_soon_threadsafe(settle, addresses, problem)

        _ask((host, port, family, type, proto, flags), told)
        return await found


def run(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on such a loop."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(work)


def _ask(arguments: Arguments, told: Callable[[Any, Exception | None], None]) -> None:
    with _lock:
        if arguments in _waiting:
            _waiting[arguments].append(told)
            return
        if len(_waiting) >= AT_ONCE:
            raise OSError(f"{AT_ONCE} names are being looked up and none is found: the resolver does not answer")
        _waiting[arguments] = [told]
    try:
        threading.Thread(target=_look_up, args=(arguments,), name="lookup", daemon=True).start()
    except RuntimeError as problem:  # no more threads to be had
        _tell(arguments, None, OSError(str(problem)))


def _look_up(arguments: Arguments) -> None:
    try:
        addresses = socket.getaddrinfo(*arguments)
    except Exception as problem:  # UnicodeError for what is no name, beside OSError
        _tell(arguments, None, problem)
    else:
        _tell(arguments, addresses, None)


def _tell(arguments: Arguments, addresses: Any, problem: Exception | None) -> None:
    with _lock:
        waiting = _waiting.pop(arguments)
    for told in waiting:
        told(addresses, problem)
