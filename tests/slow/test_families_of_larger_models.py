"""The families of `tests/zoo/test_families.py` whose smallest member takes seconds."""

import pytest
from families import assert_verified

SAMPLE = {
    "davit": "davit_tiny",
    "fastvit": "fastvit_t8",
    "iformer": "iformer_t",
    "mobilevit": "mobilevit_xxs",
    "mvitv2": "mvitv2_tiny",
    "repghost": "repghostnet_050",
    "repvit": "repvit_m1",
    "rexnet": "rexnet_100",
    "sknet": "skresnet18",
    "swiftformer": "swiftformer_l1",
    "tiny_vit": "tiny_vit_5m_224",
}


@pytest.mark.parametrize(("family", "name"), SAMPLE.items(), ids=SAMPLE.values())
def test_family_is_verified(family: str, name: str) -> None:
    assert_verified(family, name)
