"""Without a way to the Hub pretrained weights end within seconds, in one line, whatever the proxy does."""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import huggingface_hub.constants
import pytest
import timm

import tcnn  # noqa: F401
from tcnn.errors import DownloadError
from tcnn.hugging_face import download_errors, offline_if_unreachable

PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy")


@pytest.fixture(autouse=True)
def unknown_hub(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that never resolves (RFC 6761), and an empty cache."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "https://tcnn.invalid")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path_factory.mktemp("cache")))
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)


@contextmanager
def proxy(answer: bytes) -> Iterator[str]:
    """A proxy that says the same to everyone; of b"" it keeps the connection, and is silent."""
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as kept:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection = kept.enter_context(listener.accept()[0])
                    if answer:
                        connection.recv(1000)
                        connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)  # which wakes the thread


@pytest.mark.parametrize(
    ("answer", "offline"),
    [(b"HTTP/1.1 200 OK\r\n\r\n", False), (b"HTTP/1.1 407 Who are you\r\n\r\n", False),
     (b"HTTP/1.1 404 Not Found\r\n\r\n", True), (b"HTTP/1.1 504 Gone\r\n\r\n", True), (b"", True)],
)  # fmt: skip
def test_a_proxy_that_does_not_lead_to_the_hub_is_no_network(
    answer: bytes, offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tcnn.hugging_face.ANSWERS", 0.3)
    with proxy(answer) as address:
        monkeypatch.setenv("HTTPS_PROXY", address)
        with offline_if_unreachable():
            assert huggingface_hub.constants.HF_HUB_OFFLINE is offline
    assert not huggingface_hub.constants.HF_HUB_OFFLINE


@pytest.mark.parametrize("proxied", [True, False])
def test_timm_says_in_one_line_what_to_do(proxied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if proxied:
        monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(DownloadError) as error:
        timm.create_model("t_resnet18", pretrained=True)
    assert time.monotonic() - began < 20
    said = str(error.value)
    assert said.startswith("t_resnet18: the pretrained weights could not be downloaded and are not in the cache")
    assert "pretrained_cfg_overlay={'file': FILE}" in said and "pretrained=False" in said and "--" not in said
    assert "\n" not in said


def test_an_argument_that_timm_does_not_know_is_told_by_python() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
        timm.create_model("t_test_resnet", pretrained=True, depth=3)


def test_what_a_proxy_refuses_is_a_download_that_failed() -> None:
    told = pytest.raises(DownloadError, match="resnet18: the pretrained weights could not be downloaded")
    with told, download_errors("resnet18"):
        raise httpx.ProxyError("403 Forbidden")


def test_what_loads_timm_may_be_loaded_first() -> None:
    """timm, once loaded, has the models registered, which ask the Hub's client for nothing before they are built."""
    subprocess.run([sys.executable, "-c", "import tcnn.hugging_face"], check=True, timeout=120)
