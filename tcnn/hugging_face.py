"""The Hugging Face Hub's client: the cache alone where the Hub is out of reach, a quiet log, known errors; its models:
their names, what is downloaded, and why it could not be."""

import logging
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import ParseResult, urlparse
from urllib.request import getproxies, proxy_bypass

import huggingface_hub
import huggingface_hub.constants
from safetensors import SafetensorError

from tcnn.errors import DownloadError, WeightsError, one_line

HUB = ("hf-hub", "hf_hub")
BUILD_ERRORS = (RuntimeError, ValueError, KeyError, TypeError, AttributeError, SafetensorError)
"""Errors that timm and the readers of weights raise for an invalid configuration or file."""
NOT_THERE = {
    "RepositoryNotFoundError": "repository", "RevisionNotFoundError": "revision", "GatedRepoError": "public repository",
    "RemoteEntryNotFoundError": "file of weights", "EntryNotFoundError": "file of weights",
}  # fmt: skip
"""What the Hub does not have, or not for everyone, by the client's errors."""
PORTS = {"http": 80, "https": 443}
CONNECTS, ANSWERS = 3.0, 5.0
"""Seconds that the Hub or a proxy may take to accept a connection, and a proxy to reach the Hub."""
CLIENTS = ("huggingface_hub", "httpx", "httpx2", "requests")
"""Packages whose errors come from asking the Hub, by the version of its client."""


@contextmanager
def offline_if_unreachable() -> Iterator[None]:
    """Context that uses the hub's cache only if there is no network: its client would retry for a minute per file.

    So does the library of data sets, if it is loaded.
    """
    settings = [huggingface_hub.constants, *filter(None, [sys.modules.get("datasets.config")])]
    before = [each.HF_HUB_OFFLINE for each in settings]
    if not any(before) and not _reachable(huggingface_hub.constants.ENDPOINT):
        _set(settings, [True] * len(settings))
    try:
        yield
    finally:
        _set(settings, before)


def _set(settings: list[Any], offline: list[bool]) -> None:
    for each, value in zip(settings, offline, strict=True):
        each.HF_HUB_OFFLINE = value


def _reachable(address: str) -> bool:
    """Whether somebody answers there within seconds, through the proxy if there is one."""
    target, proxy = urlparse(address), _proxy(address)
    way = target if proxy is None else proxy
    try:
        with socket.create_connection((way.hostname or "", _port(way)), timeout=CONNECTS) as connection:
            if proxy is None or (proxy.scheme, target.scheme) != ("http", "https"):
                return True
            connection.settimeout(ANSWERS)
            place = f"{target.hostname}:{_port(target)}"
            connection.sendall(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
            status = connection.recv(12)[-3:]  # of "HTTP/1.1 200"; 407 asks for a password, which the client knows
            return status.startswith(b"2") or status == b"407"
    except OSError:
        return False


def _proxy(address: str) -> ParseResult | None:
    """The proxy on the way to an address, as the environment says."""
    target, proxies = urlparse(address), getproxies()
    given = proxies.get(target.scheme) or proxies.get("all")
    if not given or proxy_bypass(target.hostname or ""):
        return None
    return urlparse(given if "://" in given else f"http://{given}")


def _port(address: ParseResult) -> int:
    return address.port or PORTS.get(address.scheme, 1080)


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Context in which the client, and the library of data sets, log errors only."""
    loggers = [logging.getLogger(name) for name in ("huggingface_hub", "datasets")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def is_hub_error(error: Exception) -> bool:
    """Whether an error comes from asking the Hub."""
    return any(kind.__module__.split(".")[0] in CLIENTS for kind in type(error).__mro__)


def hub_error_of(error: BaseException) -> Exception | None:
    """The first of an error and what caused it that says that the Hub, or the way to it, failed.

    The client tells of an upload that the store of large files refuses as a RuntimeError, which that caused.
    """
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, Exception) and (is_hub_error(found) or isinstance(found, OSError)):
            return found
        found = found.__cause__
    return None


GO_ON = "give --weights FILE, or --no-pretrained for random ones"
"""What to do without a network."""


@contextmanager
def hub_errors(name: str, go_on: str = GO_ON) -> Iterator[None]:
    """Context that raises what goes wrong in asking the Hub as `DownloadError`, and leaves all other errors alone."""
    try:
        yield
    except Exception as error:
        if is_hub_error(error) or isinstance(error, ConnectionError | URLError):
            raise download_error(name, error, go_on) from error
        raise


@contextmanager
def download_errors(name: str) -> Iterator[None]:
    """Context that raises what goes wrong in loading a model as `DownloadError`, or as `WeightsError`."""
    try:
        with hub_errors(name):
            yield
    except DownloadError as error:  # what a `t_` model says is in the words of timm's callers
        raise download_error(name, error.__cause__ or error) from error.__cause__
    except FileNotFoundError as error:
        raise WeightsError(f"{name}: {one_line(error)}") from error
    except OSError as error:
        raise download_error(name, error) from error
    except BUILD_ERRORS as error:
        raise WeightsError(f"{name}: cannot be built with its weights: {one_line(error)}") from error


def download_error(name: str, error: BaseException, go_on: str = GO_ON) -> DownloadError:
    """What to raise where weights can neither be downloaded nor found in the cache; `go_on` says what to do without."""
    if type(error).__name__ in NOT_THERE:
        return DownloadError(
            f"{name}: the Hub has no such {NOT_THERE[type(error).__name__]}, or not for everyone; check its name, log "
            f"in with `hf auth login`, {go_on}"
        )
    return DownloadError(
        f"{name}: the pretrained weights could not be downloaded and are not in the cache ({type(error).__name__}); "
        f"connect, fill the cache (HF_HOME) on a connected machine, {go_on}"
    )


def repository_of(name: str) -> tuple[str, str | None] | None:
    """The repository and revision of an `hf-hub:` name, or the directory of a `local-dir:` one; None for others."""
    from timm.models import parse_model_name  # here: timm's import runs what imports this file

    try:
        kind, identifier = parse_model_name(name)
    except ValueError:
        return None
    if kind == "local-dir":
        return str(identifier), None
    if kind not in HUB:
        return None
    repository, _, revision = str(identifier).partition("@")
    return repository, revision or None


def downloaded(name: str, repository: str, revision: str | None) -> Path:
    """The weights of a repository, of the cache or downloaded, or the directory of a `local-dir:` name.

    Raises: `DownloadError` for weights that are in neither place.
    """
    if name.startswith("local-dir:"):
        return Path(repository)
    with download_errors(name), offline_if_unreachable(), quiet_hub():
        return Path(huggingface_hub.hf_hub_download(repository, "model.safetensors", revision=revision))
