"""`tcnn.push_to_hub` against a hub on the loopback, from which timm then loads what was published."""

import json
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
import timm
import torch
import yaml
from hub_server import TOKEN, Hub, serving
from PIL import Image
from timm.models._hub import push_to_hf_hub
from tiny_runs import colours, tiny
from torch import nn

import tcnn
from tcnn.analysis import plots
from tcnn.analysis.reading.info import info
from tcnn.checkpoints.checkpoint import read
from tcnn.errors import DownloadError, EnvironmentFailure, NoAttentionError, RequestError
from tcnn.publishing.push import draw


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub whose token is known, and an empty cache."""
    with serving() as made:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", made.url)
        monkeypatch.setattr(
            huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE",
            made.url + "/{repo_id}/resolve/{revision}/{filename}",
        )  # fmt: skip
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path_factory.mktemp("cache")))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield made


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted network of three classes with names."""
    torch.manual_seed(0)
    source = timm.create_model("test_resnet", num_classes=3)
    source.pretrained_cfg = {**source.pretrained_cfg, "label_names": ["cat", "dog", "owl"], "num_classes": 3}
    model, _ = tcnn.convert(source, target="layer4.0.conv1")
    path = tmp_path_factory.mktemp("converted") / "t.safetensors"
    return tcnn.save(model, path, tcnn.verify(source, model, input_size=(64, 64)), {"weights": "pretrained"})


def head(card: str) -> dict:
    """The YAML head of a card."""
    return yaml.safe_load(card.split("---\n")[1])


def evaluation(path: Path, own: Path) -> Path:
    """What `tcnn evaluate --json` prints, of a CNN and a checkpoint."""
    rows = [
        {"model": name, "height": 64, "width": 64, "corrupted": None, "corruption_top1": corrupted,
         "clean": {"images": 400, "top1": top1, "top5": None, "loss": 1.0}}
        for name, top1, corrupted in (("runs/cnn.safetensors", 0.75, 0.5), (str(own), 0.8, 0.6))
    ]  # fmt: skip
    path.write_text(json.dumps({"data": "/home/me/animals", "images": 400, "rows": rows}))
    return path


@torch.no_grad()
def test_what_is_published_timm_builds_and_tcnn_converts(hub: Hub, file: Path, tmp_path: Path) -> None:
    for number in range(3):
        Image.effect_noise((80, 64), 60).convert("RGB").save(tmp_path / f"{number}.png")
    report = tcnn.push_to_hub(file, "my-team/animals", private=True, message="first", images=tmp_path)
    maps = [each.name for each in report.files if each.name.startswith("attention")]
    assert maps == ["attention-1-combined.png", "attention-2-combined.png"]
    assert all(f"]({name})" in report.card for name in maps)
    assert hub.private == {"my-team/animals"}
    (commit,) = hub.commits
    assert commit["summary"] == "first"
    assert commit["revision"] == "main"
    assert commit["files"] == sorted(each.name for each in report.files)
    assert {"README.md", "config.json", "model.safetensors", "centres.png"} <= set(commit["files"])
    assert all(each.bytes == len(hub.repositories["my-team/animals"][each.name]) for each in report.files)
    assert report.commit is not None
    assert report.commit.startswith(f"{hub.url}/my-team/animals/commit/")
    model, expected = timm.create_model("hf-hub:my-team/animals", pretrained=True).eval(), tcnn.load(file).eval()
    image = torch.randn(2, 3, 64, 64)
    assert torch.equal(model(image), expected(image))
    assert model.pretrained_cfg["label_names"] == ["cat", "dog", "owl"]
    config = json.loads(hub.repositories["my-team/animals"]["config.json"])
    assert config["label_names"] == ["cat", "dog", "owl"]
    (tmp_path / "published.safetensors").write_bytes(hub.repositories["my-team/animals"]["model.safetensors"])
    assert read(tmp_path / "published.safetensors").section("weights") == read(file).section("weights") == "pretrained"


def test_a_second_push_replaces_the_files_and_leaves_others(hub: Hub, file: Path) -> None:
    tcnn.push_to_hub(file, "my-team/animals", pictures=False)
    hub.repositories["my-team/animals"]["notes.txt"] = b"ours"
    tcnn.push_to_hub(file, "my-team/animals", license="mit", pictures=False)
    files = hub.repositories["my-team/animals"]
    assert files["notes.txt"] == b"ours"
    assert head(files["README.md"].decode())["license"] == "mit"
    assert len(hub.commits) == 2


def test_a_pull_request_changes_nothing_yet(hub: Hub, file: Path) -> None:
    report = tcnn.push_to_hub(file, "my-team/animals", create_pr=True, pictures=False)
    assert report.pull_request == f"{hub.url}/my-team/animals/discussions/1"
    assert hub.repositories["my-team/animals"] == {}


def test_a_cnn_that_timm_published_is_converted_from_there(hub: Hub, tmp_path: Path) -> None:
    """timm's own function speaks to the same server, so what it speaks is the Hub's language."""
    source = timm.create_model("test_resnet", num_classes=4)
    source.pretrained_cfg = {**source.pretrained_cfg, "num_classes": 4}
    push_to_hf_hub(source, "my-team/cnn", token=TOKEN, safe_serialization=True)
    from tcnn.workflows.pipeline import convert_to_file

    made = convert_to_file("hf-hub:my-team/cnn", tmp_path / "t.safetensors")
    assert made.verification is not None
    assert made.verification.passed
    again = tcnn.push_to_hub(tmp_path / "t.safetensors", "my-team/t_cnn", dry_run=True, pictures=False)
    assert head(again.card)["base_model"] == "my-team/cnn"


def test_a_dry_run_asks_nobody_and_shows_every_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    rows = evaluation(tmp_path / "accuracy.json", file)
    report = tcnn.push_to_hub(file, "my-team/animals", evaluations=[rows], pictures=False, dry_run=True)
    assert report.commit is None
    sizes = {each.name: each.bytes for each in report.files}
    assert set(sizes) == {"README.md", "config.json", "model.safetensors"}
    assert sizes["README.md"] == len(report.card.encode())
    assert "| t.safetensors | 400 of animals | 80.00% | 75.80% to 83.63% | – | 60.00% |" in report.card
    assert "home" not in report.card
    (result,) = head(report.card)["model-index"][0]["results"]
    assert [each["value"] for each in result["metrics"]] == [0.8], "the other model's are not this one's"
    assert result["dataset"]["name"] == "animals"
    seen = json.loads(rows.read_text()) | {"trained_on": [str(file)]}
    rows.write_text(json.dumps(seen))
    again = tcnn.push_to_hub(file, "my-team/animals", evaluations=[rows], pictures=False, dry_run=True).card
    assert "model-index" not in head(again), "what a model has seen is no result of it"
    assert "| t.safetensors (trained on these images) |" in again
    assert 'timm.create_model("hf-hub:my-team/animals", pretrained=True)' in report.card
    assert "| float64 |" in report.card


@pytest.mark.slow
def test_onnx_is_published_beside_it(file: Path) -> None:
    report = tcnn.push_to_hub(file, "my-team/animals", onnx=True, pictures=False, dry_run=True)
    assert "model.onnx" in {each.name for each in report.files}
    assert "onnxruntime" in report.card


def test_a_fine_tuned_model_says_so(file: Path, tmp_path: Path) -> None:
    training = {"data": "/srv/animals", "val": None, "weights": "pretrained",
                "metrics": {"val": {"top1": 0.9, "top5": None, "images": 50}}}  # fmt: skip
    tcnn.save(tcnn.load(file), tmp_path / "best.safetensors", sections={"training": training})
    (tmp_path / "config.json").write_text("{}")
    card = tcnn.push_to_hub(tmp_path, "my-team/animals", dry_run=True, pictures=False).card
    assert "computed the same function before they were fine-tuned" in card
    assert "| this model | 50 of animals, held out | 90.00% | 78.64% to 95.65% | – |" in card
    assert "no longer equal to its source" in card
    assert "/srv" not in card
    assert head(card)["base_model"] == "timm/test_resnet.r160_in1k"


def test_pictures_need_matplotlib_alone(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tcnn.load(file)
    drawn = draw(model, None, tmp_path)
    assert [each.file for each in drawn] == ["centres.png", "non-locality.png"]
    assert all((tmp_path / each.file).read_bytes().startswith(b"\x89PNG") for each in drawn)
    monkeypatch.setattr(plots, "NEEDED", ("not_installed",))
    assert draw(model, None, tmp_path) == ()
    with pytest.raises(EnvironmentFailure, match=r"pictures need not_installed, .*tcnn\[plots\]"):
        draw(model, tmp_path, tmp_path)


def test_maps_without_pictures_are_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(tcnn.TcnnError, match="images: attention maps are pictures"):
        tcnn.push_to_hub(file, "my-team/animals", images=tmp_path, pictures=False)


class TestRefused:
    """What cannot be published, in one line and with nothing published."""

    @pytest.mark.parametrize("name", ["animals", "a/b/c", "my-team/..", "my team/net", "../x", ""])
    def test_a_name_that_is_none(self, file: Path, name: str) -> None:
        with pytest.raises(tcnn.TcnnError, match="expected a repository as ORG/NAME"):
            tcnn.push_to_hub(file, name)

    def test_no_checkpoint(self, tmp_path: Path) -> None:
        with pytest.raises(tcnn.TcnnError, match="no such checkpoint; convert first"):
            tcnn.push_to_hub(tmp_path / "none.safetensors", "my-team/net")

    def test_a_model_that_is_no_timm_model(self) -> None:
        source = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten())
        model = tcnn.convert(source, target="0", input_size=(8, 8)).model
        with pytest.raises(tcnn.TcnnError, match="is no timm model"):
            tcnn.push_to_hub(model, "my-team/net", dry_run=True)

    def test_a_folded_model(self) -> None:
        model = tcnn.convert(timm.create_model("test_resnet"), content_heads=1).model
        torch.nn.init.normal_(model.layer4[0].conv1.proj)
        with pytest.raises(
            tcnn.TcnnError, match=r"^test_resnet\S*: was folded, for inference only; publish the checkpoint that it was"
        ):
            tcnn.push_to_hub(tcnn.fold(model).model, "my-team/net", dry_run=True)

    def test_a_license_that_is_none(self, file: Path) -> None:
        with pytest.raises(tcnn.TcnnError, match="license: expected the Hub's name"):
            tcnn.push_to_hub(file, "my-team/net", license="Do what\nyou like")

    def test_a_wrong_token(self, hub: Hub, file: Path) -> None:
        with pytest.raises(tcnn.TcnnError, match=r"the Hub refused \(401.*hf auth login"):
            tcnn.push_to_hub(file, "my-team/net", token="hf_wrong", pictures=False)
        assert hub.repositories == {}

    @pytest.mark.parametrize(
        ("status", "advice"),
        [(403, "; log in with `hf auth login`, or give a token that may write there"), (409, "")],
    )
    def test_a_commit_that_is_refused(self, hub: Hub, file: Path, status: int, advice: str) -> None:
        hub.refuse["/commit/"] = status
        with pytest.raises(tcnn.TcnnError) as caught:
            tcnn.push_to_hub(file, "my-team/net", pictures=False)
        assert str(caught.value) == f"my-team/net: the Hub refused ({status}: refused with {status}{advice})"
        assert hub.repositories == {"my-team/net": {}}

    def test_a_hub_that_fails(self, hub: Hub, file: Path) -> None:
        hub.refuse["/commit/"] = 500
        with pytest.raises(DownloadError, match=r"^my-team/net: the Hub failed \(500: .*nothing was .*push again$"):
            tcnn.push_to_hub(file, "my-team/net", pictures=False)
        assert hub.repositories == {"my-team/net": {}}

    def test_weights_that_the_store_of_large_files_refuses(self, hub: Hub, file: Path) -> None:
        """The client raises a RuntimeError, which that has caused."""
        hub.refuse["/lfs/"] = 403
        with pytest.raises(RequestError, match=r"^my-team/net: the Hub refused \(403: "):
            tcnn.push_to_hub(file, "my-team/net", pictures=False)
        del hub.refuse["/lfs/"]
        assert tcnn.push_to_hub(file, "my-team/net", pictures=False).commit

    def test_a_hub_that_is_not_there(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(tcnn.TcnnError, match=r"cannot be reached .*; nothing was published"):
            tcnn.push_to_hub(file, "my-team/net", token=TOKEN, pictures=False)


def test_what_a_repository_holds_is_told_without_its_weights(hub: Hub, file: Path) -> None:
    tcnn.push_to_hub(file, "me/mine", pictures=False)
    found = info("hf-hub:me/mine")
    assert (found.kind, found.source, found.layers) == ("T-CNN", "test_resnet.r160_in1k", 1)
    assert found.label_names == ("cat", "dog", "owl")
    assert found.verification is not None
    assert found.verification.passed
    assert not any("model.safetensors" in str(path) for path in Path(huggingface_hub.constants.HF_HUB_CACHE).rglob("*"))
    tcnn.load(huggingface_hub.hf_hub_download("me/mine", "model.safetensors"))
    hub.refuse["me/mine"] = 500
    assert info("hf-hub:me/mine").label_names == found.label_names, "from the cache"


def test_a_repository_of_timms_and_one_of_something_else(hub: Hub) -> None:
    hub.repositories["me/cnn"] = {"config.json": b'{"architecture": "resnet18", "num_classes": 7}'}
    found = info("hf-hub:me/cnn")
    assert (found.kind, found.source, found.classes, found.weights) == ("timm model", "resnet18", 7, "file")
    hub.repositories["me/llm"] = {"config.json": b'{"architectures": ["Llama"]}'}
    with pytest.raises(tcnn.TcnnError, match="hf-hub:me/llm: a repository that is no model of timm's"):
        info("hf-hub:me/llm")
    with pytest.raises(
        tcnn.TcnnError, match=r"^hf-hub:me/none: the Hub has no such repository, or not for everyone; check its name"
    ):
        info("hf-hub:me/none")


def test_a_model_that_was_trained_as_it_is(hub: Hub, tmp_path: Path) -> None:
    """Nothing in it is converted: the card says so, has no pictures of attention, and timm alone builds it."""
    data = colours(tmp_path / "photos", images=4)
    torch.manual_seed(0)
    source = timm.create_model("test_resnet", num_classes=3)
    config = tiny(convert=False, epochs=1, size=32, batch_size=4)
    tcnn.finetune(source, str(data), None, config, tmp_path / "cnn")
    report = tcnn.push_to_hub(tmp_path / "cnn", "me/cnn", token=TOKEN)
    assert {file.name for file in report.files} == {"README.md", "config.json", "model.safetensors"}
    _, head, body = report.card.split("---\n", 2)
    assert yaml.safe_load(head)["tags"] == ["image-classification", "timm", "tcnn"]
    assert "trained by tcnn as it is: nothing in it is converted" in body
    assert "Transformed" not in body and "Verification" not in body and "import timm\n" in body
    published = timm.create_model("hf-hub:me/cnn", pretrained=True).eval()
    trained = tcnn.load(tmp_path / "cnn" / "best.safetensors").eval()
    x = torch.rand(1, 3, 32, 32)
    assert torch.equal(published(x), trained(x))
    with pytest.raises(NoAttentionError, match="has no attention to look at"):
        tcnn.push_to_hub(tmp_path / "cnn", "me/cnn", images=tmp_path / "photos", dry_run=True)
