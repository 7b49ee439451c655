"""`tcnn push`: a dry run in words and as JSON, a hub that is asked, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest
from conftest import Result
from hub_server import TOKEN, serving

from tcnn.workflows.pipeline import convert_to_file


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("converted") / "t.safetensors"
    convert_to_file("test_resnet", path, pretrained=False)
    return path


@pytest.mark.usefixtures("no_network")
def test_a_dry_run_shows_files_and_card(tcnn: Callable[..., Result], file: Path) -> None:
    found = tcnn("push", file, "my-team/net", "--dry-run", "--no-pictures")
    assert found.code == 0, found
    assert "kB  model.safetensors" in found.out or "MB  model.safetensors" in found.out
    assert "# net\n" in found.out
    assert found.out.endswith("nothing was published at https://tcnn.invalid/my-team/net\n")


def test_it_is_published(tcnn: Callable[..., Result], file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as hub:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        found = tcnn("push", file, "my-team/net", "--no-pictures", "--message", "first", "--json").json
        assert [each["summary"] for each in hub.commits] == ["first"]
    assert found["commit"].startswith(found["url"])
    assert {each["name"] for each in found["files"]} == {"README.md", "config.json", "model.safetensors"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("FILE", "net"), "expected a repository as ORG/NAME"),
        (("none.safetensors", "my-team/net"), "no such checkpoint"),
        (("FILE", "my-team/net", "--images", "photos", "--no-pictures"), "attention maps are pictures"),
        (("FILE", "my-team/net", "--evaluation", "none.json"), "none.json"),
        (("FILE", "my-team/net", "--license", "no such thing"), "license: expected"),
    ],
)
def test_a_wrong_request_is_one_line(
    tcnn: Callable[..., Result], file: Path, arguments: tuple[str, ...], expected: str
) -> None:
    given = [str(file) if argument == "FILE" else argument for argument in arguments]
    assert expected in tcnn("push", *given, "--dry-run").error(2)
