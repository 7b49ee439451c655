"""The Hugging Face Hub's client: the cache alone where the Hub is out of reach, a quiet log, errors that are known."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlparse

import huggingface_hub.constants

CLIENTS = ("huggingface_hub", "httpx", "httpx2", "requests")
"""Packages whose errors come from asking the Hub, by the version of its client."""


@contextmanager
def offline_if_unreachable() -> Iterator[None]:
    """Context that uses the hub's cache only if there is no network: its client would retry for a minute per file."""
    address = urlparse(huggingface_hub.constants.ENDPOINT)
    place = address.hostname or "", address.port or (80 if address.scheme == "http" else 443)
    proxied = any(os.environ.get(key) for key in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"))
    before = huggingface_hub.constants.HF_HUB_OFFLINE
    if not before and not proxied:
        try:
            socket.create_connection(place, timeout=3).close()
        except OSError:
            huggingface_hub.constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        huggingface_hub.constants.HF_HUB_OFFLINE = before


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Context in which the client logs errors only."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def is_hub_error(error: Exception) -> bool:
    """Whether an error comes from asking the Hub."""
    return any(kind.__module__.split(".")[0] in CLIENTS for kind in type(error).__mro__)
