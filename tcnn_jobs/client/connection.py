"""The HTTP connection of a client: answers as JSON, files in both directions, and what is sent again."""

import hashlib
import math
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tcnn.characters import fault, named
from tcnn.errors import CheckpointError, RequestError, one_line, shorten
from tcnn_jobs.client.packing import CHUNK, Form
from tcnn_jobs.client.refusals import ServerFailure, patiently, refusal

Json = dict[str, Any]
DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT = 60.0
"""Seconds without a byte; event streams are pinged more often."""
FIRST_PATIENCE = 3.0
"""Seconds to try again for while nobody has ever answered."""
AS_IT_IS = {"Accept-Encoding": "identity"}
"""Asks for a file uncompressed, also of a proxy: only then a range of it goes on where the last one ended."""


class Connection:
    """HTTP to one server with one key. `patience`: seconds to try again for while it is away or busy."""

    def __init__(self, url: str, key: str | None, patience: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise RequestError(f"{url}: expected a server's URL, such as {DEFAULT_URL}")
        self.url: str = url.rstrip("/")
        self.patience: float = patience
        self._met = False  # before the first answer a wrong URL is likelier than a server that starts again
        if key and not (key.isascii() and key.isprintable() and " " not in key):
            raise RequestError("expected an API key of visible ASCII characters; copy it again")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            self.http: httpx.Client = httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT)
        except (httpx.InvalidURL, ValueError) as error:  # a port that is none
            raise RequestError(f"{url}: not a server's URL ({one_line(error)})") from error

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def json(self, method: str, route: str, content: Callable[[], Iterator[bytes]] | None = None, *, has: str = "",
             **options: Any) -> Json:  # fmt: skip
        """An answer, after as many tries as patience allows. Raises `RequestError` for what cannot be sent.

        `has`: a name that every such answer of a tcnn server has.
        """
        if unsaid := _unsayable(options.get("json")) or _unsayable(options.get("params")):
            raise RequestError(unsaid)
        lost = False

        def ask() -> Json:
            nonlocal lost
            request = self._encoded(method, route, content=content and content(), **options)
            try:
                answer = self.http.send(request)
                self._met = True
                if answer.is_success:
                    return self._said(answer, has)
            except httpx.TransportError as error:
                lost = lost or not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                raise self.away(error) from error
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:  # of the answer: the request is encoded
                raise self._other(one_line(error)) from error
            if lost and method == "DELETE" and answer.status_code == httpx.codes.NOT_FOUND:
                return {}  # done at the try before, whose answer was lost
            raise refusal(answer)

        return patiently(lambda: self.patience if self._met else min(self.patience, FIRST_PATIENCE))(ask)

    def _encoded(self, method: str, route: str, **options: Any) -> httpx.Request:
        """A request as it goes out; raises `RequestError` for one that HTTP or JSON cannot say."""
        try:
            return self.http.build_request(method, route, **options)
        except (httpx.InvalidURL, TypeError, ValueError) as error:
            raise RequestError(f"{method} {route!a}: the request cannot be encoded ({one_line(error)})") from error

    def _said(self, answer: httpx.Response, has: str) -> Json:
        said = answer.json() if answer.content else {}
        if not isinstance(said, dict) or (has and has not in said):
            raise self._other(f"expected an object{has and f' with {has!r}'}, found other JSON")
        return said

    def _other(self, found: str) -> ServerFailure:
        return ServerFailure(f"{self.url}: does not answer as a tcnn server ({found})")

    @contextmanager
    def stream(self, route: str, headers: dict[str, str] | None = None) -> Iterator[httpx.Response]:
        """An answer that is read as it comes; one that is no good one is raised."""
        with _legible(), self.http.stream("GET", route, headers=headers) as answer:
            self._met = True
            if not answer.is_success:
                answer.read()
                raise refusal(answer)
            yield answer

    def upload(self, route: str, name: str, chunks: Callable[[], Iterator[bytes]], key: str | None) -> Json:
        """Send a file as a form of one field, streamed."""
        form, headers = Form(name), once(key)
        headers["Content-Type"] = form.content_type
        return self.json(
            "POST", route, headers=headers, content=lambda: form.around(chunks()), timeout=3600.0, has="id"
        )

    def fetch(self, file: Json, temporary: Path) -> None:
        """Get a file of a result, checked by its SHA-256; where it breaks off it goes on."""
        digest, done, link = hashlib.sha256(), 0, True

        def go_on() -> None:
            nonlocal done, link
            begun = done
            headers = {"Range": f"bytes={done}-", "If-Range": f'"{file["sha256"]}"'} if done else {}
            try:
                with self._open(file["url"], headers, link) as answer:
                    if not answer.is_success:
                        answer.read()
                        if link:  # the store that it was sent to; the server can give the file, too
                            link = False
                            return
                        raise refusal(answer)
                    if done and answer.status_code != httpx.codes.PARTIAL_CONTENT:
                        raise CheckpointError("the file has changed on the server; download it again")
                    for chunk in answer.iter_bytes(CHUNK):
                        out.write(chunk)
                        digest.update(chunk)
                        done += len(chunk)
            except httpx.TransportError as error:
                link = False
                if done == begun:
                    raise self.away(error) from error

        with temporary.open("wb") as out:
            while done < file["size"]:  # patience begins anew whenever something has come
                patiently(lambda: self.patience)(go_on)
        if done != file["size"] or digest.hexdigest() != file["sha256"]:
            raise CheckpointError(
                f"expected {file['size']} bytes with SHA-256 {file['sha256'][:12]}…, found {done} with "
                f"{digest.hexdigest()[:12]}…; nothing was kept, download it again"
            )

    @contextmanager
    def _open(self, url: str, headers: dict[str, str], link: bool) -> Iterator[httpx.Response]:
        """A file, or where the server sends us for it: there without its key, and with no ETag of its."""
        query = {"redirect": "true"} if link else None
        with _legible(), self.http.stream("GET", url, headers=AS_IT_IS | headers, params=query) as answer:
            if not answer.has_redirect_location:
                yield answer
                return
        there = {"Range": headers["Range"]} if headers else {}
        place = answer.headers["location"]
        with _legible(), httpx.stream("GET", place, headers=AS_IT_IS | there, timeout=TIMEOUT) as found:
            yield found

    def away(self, error: Exception) -> ServerFailure:
        """What is raised where nothing answers."""
        return ServerFailure(
            f"{self.url}: cannot be reached ({one_line(error).rstrip('.')}); is `tcnn serve` running there, and is "
            "--server or TCNN_SERVER right?",
            again=True,
        )


@contextmanager
def _legible() -> Iterator[None]:
    """Around an answer that is read: one that came compressed, and cannot be unpacked, is a failure of the way here."""
    try:
        yield
    except httpx.DecodingError as error:
        raise ServerFailure(
            f"the answer came compressed and cannot be unpacked ({one_line(error).rstrip('.')}); a proxy on the way "
            "compresses what it passes on: let it leave downloads as they are"
        ) from error


def _unsayable(value: Any, place: str = "") -> str:
    """What a body or query has that JSON in UTF-8 has not, NaN or a lone surrogate, and where; nothing if it has none.

    `place`: the names of the fields around the value, joined by points.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return f"{place or 'the body'}: expected a finite number, found NaN or an infinity"
    if isinstance(value, str):
        wrong = next((character for character in value if "\ud800" <= character <= "\udfff"), None)
        return f"{place or 'the body'}: expected text, found {fault(wrong)}; leave it out" if wrong else ""
    places = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for name, item in places:
        told = f"{place}.{named(str(name))}" if place else named(str(name))
        if found := _unsayable(name, told) or _unsayable(item, told):
            return found
    return ""


def once(key: str | None = None) -> dict[str, str]:
    """The header by which a request that is sent twice is done once. Raises `RequestError` for a key that is none."""
    if key and not re.fullmatch(r"[\x21-\x7e]{1,255}", key):
        raise RequestError(
            f"key: expected 1 to 255 visible ASCII characters, found {shorten(ascii(key), 60)}; choose another "
            "idempotency key"
        )
    return {"Idempotency-Key": key or str(uuid.uuid4())}
