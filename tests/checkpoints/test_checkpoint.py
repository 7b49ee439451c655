"""One safetensors file from which the model comes back, whatever was converted and how."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sampled import sampled
from torch import Tensor, nn

import tcnn
from tcnn.checkpoints import checkpoint
from tcnn.errors import CheckpointError, OutputError, RequestError, VerificationError

Lively = Callable[..., nn.Module]
AssertSame = Callable[[nn.Module, nn.Module], None]
WITHIN_ITSELF: dict[str, object] = {}
WITHIN_ITSELF["again"] = WITHIN_ITSELF


def image(channels: int = 3, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(1, channels, 48, 64, generator=torch.Generator().manual_seed(0)).to(dtype)


@torch.no_grad()
def assert_comes_back(model: nn.Module, path: Path, assert_same: AssertSame, **options: object) -> nn.Module:
    """Save, load, and compare every bit of the state and of the outputs."""
    loaded = tcnn.load(tcnn.save(model, path), **options)
    assert_same(loaded, model)
    assert not loaded.training
    first = next(model.parameters())
    convolution = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    x = image(convolution.in_channels, first.dtype)
    for ours, theirs in zip(loaded(x), model.eval()(x), strict=True):
        assert torch.equal(ours, theirs)
    return loaded


class Plain(nn.Module):
    """No timm model, and two of its layers share one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.last = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.head = nn.Linear(8, 8)
        self.tail = nn.Linear(8, 8)
        self.tail.weight = self.head.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.head(self.last(self.stem(x).relu()).mean((2, 3))))


class TestRoundTrip:
    @pytest.mark.parametrize(
        "dtype",
        sampled([torch.float32, torch.float64, torch.bfloat16, torch.float16], [torch.float64, torch.bfloat16]),
        ids=str,
    )
    def test_keeps_every_bit(
        self, lively: Lively, assert_same_state: AssertSame, tmp_path: Path, dtype: object
    ) -> None:
        model = tcnn.convert(lively().to(dtype)).model
        assert_comes_back(model, tmp_path / "m.safetensors", assert_same_state)

    @pytest.mark.parametrize(
        "name", sampled(["test_byobnet", "test_efficientnet", "test_nfnet", "test_convnext"], ["test_byobnet"])
    )
    def test_of_another_family(self, lively: Lively, assert_same_state: AssertSame, tmp_path: Path, name: str) -> None:
        assert_comes_back(tcnn.convert(lively(name)).model, tmp_path / "m.safetensors", assert_same_state)

    @pytest.mark.parametrize(
        "options",
        [
            {"stride": "remove"},
            {"temperature": 1.0, "head_dim": 4, "seed": 3},
            {"target": r"layer4\.0\.conv2"},
            pytest.param({"stage": 3}, marks=pytest.mark.slow),
        ],
        ids="+".join,
    )
    def test_of_every_way_to_convert(
        self, lively: Lively, assert_same_state: AssertSame, tmp_path: Path, options: dict[str, object]
    ) -> None:
        model = tcnn.convert(lively(), **options).model
        loaded = assert_comes_back(model, tmp_path / "m.safetensors", assert_same_state)
        assert loaded.conversion_report.config == model.conversion_report.config

    def test_after_the_classifier_was_replaced(
        self, lively: Lively, assert_same_state: AssertSame, tmp_path: Path
    ) -> None:
        model = tcnn.convert(lively()).model
        model.reset_classifier(7)
        loaded = assert_comes_back(model, tmp_path / "m.safetensors", assert_same_state)
        assert loaded.num_classes == 7
        assert loaded(image()).shape == (1, 7)

    def test_of_a_grey_model(self, lively: Lively, assert_same_state: AssertSame, tmp_path: Path) -> None:
        assert_comes_back(tcnn.convert(lively(in_chans=1)).model, tmp_path / "m.safetensors", assert_same_state)

    def test_of_a_feature_extractor(self, lively: Lively, assert_same_state: AssertSame, tmp_path: Path) -> None:
        source = lively(features_only=True, out_indices=(2, 4))
        loaded = assert_comes_back(tcnn.convert(source).model, tmp_path / "m.safetensors", assert_same_state)
        assert loaded.feature_info.channels() == [48, 96]

    def test_of_a_trained_model(self, lively: Lively, assert_same_state: AssertSame, tmp_path: Path) -> None:
        model = tcnn.convert(lively(num_classes=10), temperature=1.0).model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(4, 3, 64, 64)).square().mean().backward()
        optimizer.step()
        assert_comes_back(model, tmp_path / "m.safetensors", assert_same_state)

    def test_of_what_was_loaded(self, written: Path, tmp_path: Path) -> None:
        again = tcnn.save(tcnn.load(written), tmp_path / "again.safetensors")
        assert checkpoint.read(again).metadata == checkpoint.read(written).metadata, "the digest, too, is the same"

    def test_of_no_timm_model_needs_its_source(self, assert_same_state: AssertSame, tmp_path: Path) -> None:
        source = Plain().eval()
        model = tcnn.convert(source).model
        loaded = assert_comes_back(model, tmp_path / "m.safetensors", assert_same_state, source=Plain())
        assert loaded.tail.weight is loaded.head.weight, "tied parameters are tied again"
        with pytest.raises(CheckpointError, match="made from Plain, which timm does not know; in Python, give its"):
            tcnn.load(tmp_path / "m.safetensors")
        with pytest.raises(RequestError, match=r"^num_classes: the source is built already; give it to what builds"):
            tcnn.load(tmp_path / "m.safetensors", source=Plain(), num_classes=3)

    def test_with_more_classes_than_there_is_memory_for(self, written: Path) -> None:
        with pytest.raises(
            CheckpointError, match=r"cannot build test_resnet.* with {'num_classes': 10{12}, .*: no memory$"
        ):
            tcnn.load(written, num_classes=10**12)

    def test_leaves_the_given_source_alone(self, tmp_path: Path) -> None:
        source = Plain().eval()
        before = {name: tensor.clone() for name, tensor in source.state_dict().items()}
        path = tcnn.save(tcnn.convert(source).model, tmp_path / "m.safetensors")
        other = Plain()
        kept = {name: tensor.clone() for name, tensor in other.state_dict().items()}
        tcnn.load(path, source=other)
        assert all(torch.equal(tensor, kept[name]) for name, tensor in other.state_dict().items())
        assert all(torch.equal(tensor, before[name]) for name, tensor in source.state_dict().items())

    def test_is_independent_of_the_file(self, converted: nn.Module, tmp_path: Path) -> None:
        path = tcnn.save(converted, tmp_path / "m.safetensors")
        loaded = tcnn.load(path)
        path.write_bytes(bytes(path.stat().st_size))  # in place, as `cp` does
        assert torch.equal(loaded.fc.weight, converted.fc.weight)


class TestWhatAFileHolds:
    def test_strings_that_other_programs_can_read(self, converted: nn.Module, tmp_path: Path) -> None:
        sections = {"training": {"epochs": 3, "τ": [1, None]}}
        path = tcnn.save(converted, tmp_path / "m.safetensors", sections=sections)
        size = int.from_bytes(path.read_bytes()[:8], "little")
        metadata = json.loads(path.read_bytes()[8 : 8 + size])["__metadata__"]
        assert metadata["format"] == "pt"
        assert metadata["tcnn_version"] == tcnn.__version__
        assert metadata["base_model"].partition(".")[0] == "test_resnet"
        assert json.loads(metadata["conversion"])["config"]["temperature"] == pytest.approx(1 / 46)
        assert json.loads(metadata["pretrained_cfg"])["architecture"] == "t_test_resnet"
        content = checkpoint.read(path)
        assert content.section("training") == {"epochs": 3, "τ": [1, None]}
        assert content.section("absent") is None

    def test_the_verification(self, lively: Lively, converted: nn.Module, tmp_path: Path) -> None:
        verdict = tcnn.verify(lively(num_classes=10), converted, float64=False)
        path = tcnn.save(converted, tmp_path / "m.safetensors", verdict)
        assert checkpoint.read(path).verification == verdict
        assert verdict.passed

    @pytest.mark.parametrize("name", ["conversion", "digest", "format", "verification"])
    def test_no_section_under_a_reserved_name(self, converted: nn.Module, tmp_path: Path, name: str) -> None:
        with pytest.raises(RequestError, match=f"section '{name}': the name is tcnn's own"):
            tcnn.save(converted, tmp_path / "m.safetensors", sections={name: {}})
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            ("training", object(), "'training': expected plain JSON values (Object of type object is not JSON "),
            ("training", {"loss": math.nan}, "'training': expected plain JSON values, found NaN or infinity, which "),
            ("training", [0, (-math.inf,)], "'training': expected plain JSON values, found NaN or infinity, which "),
            ("training", WITHIN_ITSELF, "'training': expected plain JSON values (Circular reference detected)"),
            (3, {}, "3: expected a name, text that UTF-8 has"),
            ("\udcff", {}, "'\\udcff': expected a name, text that UTF-8 has"),
        ],
    )
    def test_no_section_that_is_not_json(
        self, converted: nn.Module, tmp_path: Path, name: Any, value: object, said: str
    ) -> None:
        with pytest.raises(RequestError) as refused:
            tcnn.save(converted, tmp_path / "m.safetensors", sections={name: value})
        assert str(refused.value).startswith(f"section {said}") and "\n" not in str(refused.value)
        assert not [*tmp_path.iterdir()]
        assert list(tmp_path.iterdir()) == []


class TestSave:
    def test_refuses_a_model_that_was_not_converted(self, lively: Lively, tmp_path: Path) -> None:
        with pytest.raises(RequestError, match=r"ResNet was not converted by tcnn; call tcnn\.convert first"):
            tcnn.save(lively(), tmp_path / "m.safetensors")

    def test_replaces_a_file_only_by_force(self, converted: nn.Module, written: Path, tmp_path: Path) -> None:
        path = tmp_path / "m.safetensors"
        path.write_text("old")
        with pytest.raises(OutputError, match="exists already"):
            tcnn.save(converted, path)
        assert path.read_text() == "old"
        tcnn.save(converted, path, force=True)
        assert checkpoint.read(path).metadata == checkpoint.read(written).metadata

    def test_refuses_more_metadata_than_the_format_takes(self, tmp_path: Path) -> None:
        """It was an error of safetensors: "header too large"."""
        metadata = {"curve": "0" * 100_000_000, "note": "mine"}
        with pytest.raises(RequestError, match=r"less than 100 MB of metadata.*found 100 MB in the section 'curve'"):
            checkpoint.write(({}, metadata), tmp_path / "m.safetensors")
        assert list(tmp_path.iterdir()) == []

    def test_gives_the_name_only_to_what_passed_the_check(self, converted: nn.Module, tmp_path: Path) -> None:
        seen = []

        def refuse(temporary: Path) -> None:
            seen.append(tcnn.load(temporary))
            raise VerificationError("no")

        with pytest.raises(VerificationError):
            tcnn.save(converted, tmp_path / "m.safetensors", check=refuse)
        assert len(seen) == 1, "the check sees the whole file"
        assert list(tmp_path.iterdir()) == []
