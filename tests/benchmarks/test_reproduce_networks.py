"""The networks of experiments: a head for some of a thousand classes, and the control of a dilated T-CNN."""

import pytest
import torch
from networks.building import network, shaped

import tcnn
from tcnn.config import FinetuneConfig
from tcnn.training.preparing.prepare import conversion_at
from tcnn.training.recipe.freezing import trunk_of


def test_a_head_for_some_of_imagenets_classes_keeps_what_it_knows() -> None:
    """Imagewoof's ten breeds are rows of a head of a thousand; other classes get a new head."""
    dogs = ("n02086240", "n02115641")
    config = FinetuneConfig()
    thousand = network("tiny_darknet", None, [str(n) for n in range(1000)], config, pretrained=False)
    with torch.no_grad():
        some = network("tiny_darknet", None, dogs, config, pretrained=False)
        image = torch.rand(1, 3, 64, 64)
        assert torch.allclose(some(image)[0], thousand(image)[0, [155, 273]], atol=1e-6)
        other = network("squeezenet1_1", None, ("cat", "dog"), config, pretrained=False)
        assert other(image).shape == (1, 2)


@pytest.mark.parametrize("name", ["resnet20", "tiny_darknet"])
def test_the_control_of_a_dilated_t_cnn_is_the_cnn_that_it_equals(name: str) -> None:
    """ResNet-20's last stage loses its stride; Tiny Darknet's has none, so nothing changes."""
    conversion = {"stride": "dilate", "content_heads": 2, **({"target": "conv1[13]"} if name == "tiny_darknet" else {})}
    config = FinetuneConfig.model_validate({"convert": False, "conversion": conversion})
    kept = network(name, None, [str(n) for n in range(10)], config, pretrained=False)
    dilated = shaped(kept, config, (32, 32))
    image = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        t_cnn = tcnn.convert(kept, conversion_at(config, (32, 32))).model.eval()
        assert torch.allclose(t_cnn(image), dilated(image), atol=1e-5)
        assert torch.allclose(kept(image), dilated(image), atol=1e-6) == (name == "tiny_darknet")
    assert trunk_of(dilated, config.conversion, (32, 32)) == trunk_of(kept, config.conversion, (32, 32)) != ()
    assert {key: value.shape for key, value in kept.state_dict().items()} == {
        key: value.shape for key, value in dilated.state_dict().items()
    }
