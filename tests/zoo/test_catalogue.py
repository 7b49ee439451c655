"""The catalogue is true: it names what timm has, and says of every model what converting it really gives."""

import json
from functools import cache

import pytest
import timm
from sampled import sampled
from timm.models import is_model_pretrained

from tcnn.conversion.describe import describe
from tcnn.errors import NothingToConvertError, UnknownModelError
from tcnn.zoo import catalogue
from tcnn.zoo.catalogue import Entry

needs_its_timm = pytest.mark.skipif(
    timm.__version__ != catalogue.timm_version(),
    reason=f"THE CATALOGUE IS UNCHECKED: it was made from timm {catalogue.timm_version()}, "
    f"{timm.__version__} is installed; run `make catalogue`",
)

SAMPLE = (
    "coatnet_pico_rw_224",
    "convnext_atto",
    "crossvit_tiny_240",
    "densenet121",
    "dla34",
    "edgenext_xx_small",
    "efficientnet_b0",
    "ghostnet_050",
    "levit_128s",
    "lcnet_035",
    "mixer_s16_224",
    "mobilenetv3_small_050",
    "nf_regnet_b0",
    "regnetx_002",
    "repvgg_a0",
    "resnet10t",
    "resnet18",
    "resnet50d",
    "resnetv2_50",
    "resnext50_32x4d",
    "selecsls42",
    "test_byobnet",
    "test_vit",
    "vgg11",
    "vit_tiny_patch16_224",
)
CHEAP = ("test_vit", "vgg11")


@cache
def rows() -> list[Entry]:
    return list(catalogue.entries().values())


@needs_its_timm
def test_every_model_of_timm_is_in_it_and_no_other() -> None:
    known = [name for name in timm.list_models() if timm.models.model_entrypoint(name).__module__.startswith("timm.")]
    assert sorted(catalogue.entries()) == sorted([*known, *catalogue.ATTENTIVE])
    assert len(known) > 1000


@needs_its_timm
@pytest.mark.parametrize("name", sampled(SAMPLE, CHEAP))
def test_an_entry_is_what_conversion_finds(name: str) -> None:
    assert catalogue.entries()[name].model_dump(mode="json") == describe(name).model_dump(mode="json")


@needs_its_timm
def test_weights_are_timms() -> None:
    for entry in rows():
        tags = [tag for tag in entry.weights if not is_model_pretrained(f"{entry.name}.{tag}" if tag else entry.name)]
        assert tags == [], entry.name


@needs_its_timm
def test_every_resnet_converts() -> None:
    refused = {name: catalogue.entries()[name].reason for name in timm.list_models(module="resnet")}
    assert {name: reason for name, reason in refused.items() if reason} == {}
    assert len(refused) > 80


def test_entries_are_complete_and_typed() -> None:
    for entry in rows():
        assert Entry.model_validate(entry.model_dump()) == entry, entry.name
        assert entry.parameters > 0, entry.name
        if entry.convertible:
            assert entry.reason is None, entry.name
            assert entry.layers > 0, entry.name
            assert entry.kernels, entry.name
            assert entry.stage, entry.name
            assert entry.converted_parameters, entry.name
            assert entry.registered_as == f"t_{entry.name}"
        else:
            assert entry.reason, entry.name
            assert "\n" not in entry.reason, entry.name
            assert entry.layers == 0, entry.name
            assert entry.registered_as is None


def test_the_file_has_one_line_per_model() -> None:
    lines = catalogue.PATH.read_text().splitlines()
    names = [json.loads(line.rstrip(","))["name"] for line in lines[1:-1]]
    assert [*names, *catalogue.ATTENTIVE] == list(catalogue.entries())


class TestSearch:
    def test_finds_every_word(self) -> None:
        found = [entry.name for entry in catalogue.search("resnet 50")]
        assert found == [name for name in catalogue.entries() if "resnet" in name and "50" in name]
        assert "seresnet50" in found

    def test_without_words_finds_everything(self) -> None:
        assert catalogue.search() == rows()

    def test_matches_patterns_in_full(self) -> None:
        assert [entry.name for entry in catalogue.search("resnet1?")] == ["resnet18"]
        names = [entry.name for entry in catalogue.search("convnext_* v2")]
        assert names == []
        assert {"convnext_atto", "convnext_tiny"} <= {entry.name for entry in catalogue.search("convnext_*")}

    def test_ignores_case_and_order(self) -> None:
        assert catalogue.search("50D ResNet") == catalogue.search("resnet 50d") != []

    def test_finds_nothing(self) -> None:
        assert catalogue.search("no_such_model") == []


class TestCheck:
    def test_knows_models_and_tags(self) -> None:
        for name in ("resnet50d", "resnet50d.ra2_in1k"):
            entry = catalogue.check(name)
            assert entry is not None
            assert entry.name == "resnet50d"

    @pytest.mark.parametrize("name", ["local-dir:somewhere", "hf-hub:org/name", "org/name", "C:\\models"])
    def test_leaves_other_sources_to_others(self, name: str) -> None:
        assert catalogue.check(name) is None

    @needs_its_timm
    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("resnet5Od", "did you mean resnet50d"),
            ("convnext-tiny", "convnext_tiny"),
            ("qqqqqqqq", "`tcnn models` lists what can be converted"),
            ("", "`tcnn models` lists"),
        ],
    )
    def test_suggests_close_names(self, name: str, words: str) -> None:
        with pytest.raises(UnknownModelError) as caught:
            catalogue.check(name)
        assert str(caught.value).startswith(f"{name}: no timm model of this name")
        assert words in str(caught.value)

    def test_lists_the_tags_there_are(self) -> None:
        with pytest.raises(UnknownModelError, match=r"no weights tagged 'imagenet'; known tags: .*ra2_in1k"):
            catalogue.check("resnet50d.imagenet")

    def test_says_why_a_model_cannot_be_converted(self) -> None:
        with pytest.raises(NothingToConvertError, match=r"no k×k convolution to convert \(looked at \d+ layers"):
            catalogue.check("vit_tiny_patch16_224")

    def test_lets_another_stage_be_tried(self) -> None:
        entry = catalogue.check("test_coatnet", default_choice=False)
        assert entry is not None
        assert "--stage" in (entry.reason or "")


def test_names_are_folded_and_unfolded() -> None:
    names = [
        "stem.0",
        "layer1.0.conv1",
        "layer1.0.conv2",
        "layer1.1.conv1",
        "layer1.1.conv2",
        "b.3.c",
        "b.5.c",
        "b.6.c",
    ]
    assert "layer1.{0-1}.conv{1-2}" in catalogue.folded(names)
    assert sorted(catalogue.unfolded(catalogue.folded(names))) == sorted(names)
    assert catalogue.unfolded(catalogue.folded([])) == []
    odd = ["a1b", "a2b", "a02b", "9", "10", "x.0.y.0", "x.1.y.1", "x.0.y"]
    assert sorted(catalogue.unfolded(catalogue.folded(odd))) == sorted(odd)


def test_what_is_meant_comes_first() -> None:
    """Exactly so named, then names that begin so, then the widely used, then all others."""

    def found(query: str) -> list[str]:
        return [entry.name for entry in catalogue.ranked(query)]

    assert found("resnet")[:4] == ["resnet50", "resnet18", "resnet34", "resnet101"]
    assert found(" ResNet50d ")[0] == "resnet50d"
    assert found("resnet101")[:2] == ["resnet101", "resnet101_clip"]
    assert found("resnext")[0] == "resnext50_32x4d"
    assert found("50d")[:2] == ["resnet50d", "cspresnet50d"]  # no name begins so
    assert found("vgg1")[:2] == ["vgg16", "vgg11"]
    widely = set(catalogue.POPULAR)
    assert widely <= set(catalogue.entries())
    for query in (
        "resnet",
        "resnet50",
        "50",
        "50d",
        "next",
        "convnext",
        "convnext_tiny",
        "mobilenet",
        "b0",
        "vgg",
        "net",
    ):
        names = found(query)
        assert sorted(names) == sorted(entry.name for entry in catalogue.search(query)), query
        places = [(name != query, not name.startswith(query), name not in widely) for name in names]
        assert places == sorted(places), query
