"""`tcnn verify --explain`, and two models of which none was converted."""

from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from conftest import Result
from timm.models import save_for_hf

from tcnn.workflows.pipeline import convert_to_file


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("converted") / "t.safetensors"
    convert_to_file("test_resnet", path, pretrained=False)
    return path


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two networks of one architecture that differ in their stem."""
    root = tmp_path_factory.mktemp("networks")
    torch.manual_seed(1)
    model = timm.create_model("test_resnet")
    save_for_hf(model, str(root / "one"), safe_serialization=True)
    with torch.no_grad():
        model.conv1[0].weight[0] += 0.1
    save_for_hf(model, str(root / "two"), safe_serialization=True)
    return root / "one", root / "two"


def test_a_page_of_an_equal_model(tcnn: Callable[..., Result], file: Path) -> None:
    Path("why.html").write_text("another")
    assert "exists" in tcnn("verify", file, "--explain", "why.html").error(2)
    found = tcnn("verify", file, "--explain", "why.html", "--force")
    assert found.code == 0, found
    assert found.out.endswith("explained in why.html\n")
    assert "The models compute the same function." in Path("why.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_page_of_another_model(tcnn: Callable[..., Result], file: Path, directories: tuple[Path, Path]) -> None:
    found = tcnn("verify", file, "--against", f"local-dir:{directories[0]}", "--explain", "why.html")
    assert found.code == 3
    assert "conv1.0" in Path("why.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_two_models_of_which_none_was_converted(tcnn: Callable[..., Result], directories: tuple[Path, Path]) -> None:
    one, two = (f"local-dir:{directory}" for directory in directories)
    same = tcnn("verify", one, "--against", one)
    assert same.code == 0, same
    assert same.out.startswith("The models compute the same function.")
    other = tcnn("verify", two, "--against", one, "--json")
    assert other.code == 3
    assert other.json["passes"][1]["first"] == "conv1.0"
    assert "conv1.0 (Conv2d → Conv2d) is the first to depart" in tcnn("verify", two, "--against", one).err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("FILE", "--force"), "--force: there is no --explain page to replace"),
        (("test_resnet",), "test_resnet"),
        (("FILE", "--explain", "no/such/folder/why.html"), "no/such/folder"),
    ],
)
def test_a_wrong_request_is_one_line(
    tcnn: Callable[..., Result], file: Path, arguments: tuple[str, ...], expected: str
) -> None:
    given = [str(file) if argument == "FILE" else argument for argument in arguments]
    assert expected in tcnn("verify", *given).error(2)
