"""timm's hub layout: a directory that timm itself, after `import tcnn`, builds the converted model from."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
import yaml
from safetensors import safe_open
from torch import Tensor, nn

import tcnn
from tcnn.checkpoints import hub
from tcnn.errors import OutputError, RequestError, StorageError
from tcnn.layers import GPSA2d

Lively = Callable[..., nn.Module]
AssertSame = Callable[[nn.Module, nn.Module], None]


@pytest.fixture(scope="module")
def soft(lively: Lively) -> nn.Module:
    return tcnn.convert(lively(num_classes=10), temperature=0.5, head_dim=4).model


@pytest.fixture(scope="module")
def directory(soft: nn.Module, lively: Lively, tmp_path_factory: pytest.TempPathFactory) -> Path:
    verdict = tcnn.verify(lively(num_classes=10), soft)
    path = tmp_path_factory.mktemp("hub") / "t_test_resnet-lively"
    return tcnn.save_directory(soft, path, verdict, {"weights": "pretrained"})


def image() -> Tensor:
    return torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))


def card(directory: Path) -> tuple[dict, str]:
    """The YAML head of a model card, and the rest."""
    empty, head, body = (directory / "README.md").read_text().split("---\n", 2)
    assert empty == ""
    return yaml.safe_load(head), body


@torch.no_grad()
def test_timm_builds_the_model_from_it(directory: Path, soft: nn.Module, assert_same_state: AssertSame) -> None:
    model = timm.create_model(f"local-dir:{directory}", pretrained=True).eval()
    assert_same_state(model, soft)
    assert torch.equal(model(image()), soft(image()))
    assert model.num_classes == 10


def test_what_timm_built_from_it_can_be_written_again(
    directory: Path, soft: nn.Module, tmp_path: Path, assert_same_state: AssertSame
) -> None:
    model = timm.create_model(f"local-dir:{directory}", pretrained=True)
    assert model.pretrained_cfg["architecture"] == "t_test_resnet"
    again = tcnn.save_directory(model, tmp_path / "again")
    assert_same_state(tcnn.load(again), soft)
    assert card(again)[0]["license"] == "apache-2.0"


def test_tcnn_loads_it(directory: Path, soft: nn.Module, assert_same_state: AssertSame) -> None:
    loaded = tcnn.load(directory)
    assert_same_state(loaded, soft)
    assert loaded.conversion_report.config == soft.conversion_report.config


@torch.no_grad()
def test_timm_takes_features_from_it(directory: Path, soft: nn.Module) -> None:
    name = f"local-dir:{directory}"
    backbone = timm.create_model(name, pretrained=True, features_only=True, out_indices=(2, 4)).eval()
    assert any(isinstance(module, GPSA2d) for module in backbone.modules())
    expected = soft.forward_intermediates(image(), indices=[2, 4], intermediates_only=True)
    for ours, theirs in zip(backbone(image()), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_timm_gives_it_another_classifier(directory: Path, soft: nn.Module) -> None:
    model = timm.create_model(f"local-dir:{directory}", pretrained=True, num_classes=3)
    assert model(image()).shape == (2, 3)
    assert torch.equal(model.layer4[0].conv1.proj, soft.layer4[0].conv1.proj)


def test_the_files_are_timms(directory: Path, soft: nn.Module) -> None:
    assert sorted(file.name for file in directory.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    config = json.loads((directory / "config.json").read_text())
    assert config["architecture"] == "t_test_resnet"
    assert config["num_classes"] == 10
    assert config["model_args"]["temperature"] == 0.5
    assert config["model_args"]["head_dim"] == 4
    assert config["pretrained_cfg"]["input_size"] == [3, 96, 96]  # `small_images`
    assert "label_names" not in config
    with safe_open(directory / "model.safetensors", framework="pt") as handle:
        assert set(handle.keys()) == set(soft.state_dict())
        assert handle.metadata()["format"] == "pt"


def test_names_of_classes_stand_where_transformers_looks(lively: Lively, tmp_path: Path) -> None:
    model = tcnn.convert(lively(num_classes=2)).model
    model.pretrained_cfg = {**model.pretrained_cfg, "label_names": ["cat", "dog"]}
    config = json.loads((tcnn.save_directory(model, tmp_path / "named") / "config.json").read_text())
    assert config["label_names"] == ["cat", "dog"]


def test_the_card_carries_licence_and_origin(directory: Path) -> None:
    head, body = card(directory)
    assert head["license"] == timm.get_pretrained_cfg("test_resnet").license == "apache-2.0"
    assert head["library_name"] == "timm"
    assert head["base_model"] == timm.get_pretrained_cfg("test_resnet").hf_hub_id
    assert head["pipeline_tag"] == "image-classification"
    assert "tcnn" in head["tags"]
    assert "# t_test_resnet" in body
    assert "model-index" not in head, "nothing was measured"
    assert "made from timm's `test_resnet.r160_in1k` by tcnn" in body
    assert "\nWeights before conversion: pretrained. The licence is that of the source weights.\n" in body
    assert "| `layer4.0.conv1` | Conv2d 3×3 | 9 | 4 |" in body
    assert "| float32 |" in body
    assert "| float32, as run, compared with its attention |" in body
    assert "temperature 0.5" in body


def test_the_card_claims_no_base_model_for_random_weights_and_no_unknown_licence(
    soft: nn.Module, tmp_path: Path
) -> None:
    tcnn.save_directory(soft, tmp_path / "random", sections={"weights": "random"})
    head, body = card(tmp_path / "random")
    assert "base_model" not in head
    assert "made from timm's `test_resnet` by tcnn" in body
    assert head["license"] == "unknown", "timm's is that of weights that these are not"
    tcnn.save_directory(soft, tmp_path / "file", sections={"weights": "file"})
    assert card(tmp_path / "file")[0]["license"] == "unknown", "a file may be anyone's"
    tcnn.save_directory(
        soft, tmp_path / "more", sections={"weights": "file", "source": {"training": {"weights": "pretrained"}}}
    )
    head, told = card(tmp_path / "more")
    assert head["license"] == "apache-2.0", "trained by tcnn from timm's"
    assert "\nWeights before conversion: file. The licence is that of the source weights.\n" in told
    assert "\n\nNot verified.\n" in card(tmp_path / "file")[1] and "\n\nNot verified.\n" in body
    model = tcnn.load(tmp_path / "random")
    model.pretrained_cfg = {**model.pretrained_cfg, "license": None}
    head, body = card(tcnn.save_directory(model, tmp_path / "unknown"))
    assert head["license"] == "unknown"
    assert "\nWeights before conversion: unknown.\n" in body


def test_the_card_of_a_loaded_model_tells_what_its_file_knew(lively: Lively, tmp_path: Path) -> None:
    """One fine-tuned from random weights was said to compute the CNN's function, under timm's licence."""
    model = tcnn.convert(lively(num_classes=10)).model
    record = {"weights": "random", "config": {"convert": True}}
    tcnn.save(model, tmp_path / "t.safetensors", sections={"training": record})
    head, text = card(tcnn.save_directory(tcnn.load(tmp_path / "t.safetensors"), tmp_path / "again"))
    assert head["license"] == "unknown" and "licence" not in text
    assert "computed the same function before they were fine-tuned" in " ".join(text.split())
    assert "Weights before conversion: random." in text
    assert "Fine-tuned, so no longer equal to its source." in text
    source = {"training": {"weights": "random", "config": {"convert": False}}}
    tcnn.save(model, tmp_path / "of_a_run.safetensors", sections={"source": source})
    head, text = card(tcnn.save_directory(tcnn.load(tmp_path / "of_a_run.safetensors"), tmp_path / "converted"))
    assert "compute the same function." in " ".join(text.split()), "its CNN was trained, it was not"


def test_the_card_says_what_stride_removal_is_equal_to(lively: Lively, tmp_path: Path) -> None:
    model = tcnn.convert(lively(), stride="remove").model
    path = tcnn.save_directory(model, tmp_path / "out")
    assert "compute the same function at stride 1" in card(path)[1].replace("\n", " ")
    again = timm.create_model(f"local-dir:{path}", pretrained=True)
    assert again.forward_features(torch.zeros(1, 3, 64, 64)).shape[-1] == 4


def test_a_directory_keeps_what_others_put_there(
    soft: nn.Module, tmp_path: Path, assert_same_state: AssertSame
) -> None:
    path = tmp_path / "out"
    path.mkdir()
    (path / "notes.txt").write_text("mine")
    (path / "model.safetensors").write_text("old")
    with pytest.raises(OutputError, match="exists already"):
        tcnn.save_directory(soft, path)
    assert (path / "model.safetensors").read_text() == "old"
    tcnn.save_directory(soft, path, force=True)
    assert (path / "notes.txt").read_text() == "mine"
    assert_same_state(tcnn.load(path), soft)


@pytest.mark.parametrize("existing", [False, True])
def test_a_failure_half_way_changes_nothing(
    soft: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool
) -> None:
    """The disk fails at the last of the three files."""
    path = tmp_path / "out"
    if existing:
        path.mkdir()
        (path / "model.safetensors").write_text("old")

    def full(*args: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hub, "model_card", full)
    with pytest.raises(StorageError, match="no space left"):
        tcnn.save_directory(soft, path, force=True)
    found = {str(file.relative_to(tmp_path)): file.read_text() for file in tmp_path.rglob("*") if file.is_file()}
    assert found == ({"out/model.safetensors": "old"} if existing else {})
    assert [entry.name for entry in tmp_path.iterdir()] == (["out"] if existing else [])


def test_only_timm_models_have_one(tmp_path: Path) -> None:
    source = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.Conv2d(4, 4, 3, stride=2))
    model = tcnn.convert(source).model
    with pytest.raises(RequestError, match=r"Sequential is no timm model: write one \.safetensors file instead"):
        tcnn.save_directory(model, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
