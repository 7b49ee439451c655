"""Entries of the catalogue for networks of tcnn's own: attention throughout, so that there is nothing to convert."""

from typing import Any

PARAMETERS = {
    "cordonnier_quadratic": 12_086_844, "cordonnier_gaussian": 12_086_952, "cordonnier_learned": 12_182_682,
    "cordonnier_learned_content": 29_441_082, "cordonnier_quadratic_tiny": 324_396, "cordonnier_gaussian_tiny": 324_504,
    "cordonnier_learned_tiny": 339_594, "cordonnier_learned_content_tiny": 778_506,
}  # fmt: skip
"""Of each network with its ten classes."""


def rows() -> list[dict[str, Any]]:
    """Their entries, as `catalogue.json` has those of timm's models."""
    return [
        {
            "name": name, "family": "attentive", "input_size": (3, 32, 32), "parameters": parameters,
            "convertible": False,
            "reason": f"{name}: has no convolution to convert, it is attention throughout; train it as it is: "
            f"tcnn finetune {name} --no-convert --no-pretrained",
        }
        for name, parameters in PARAMETERS.items()
    ]  # fmt: skip
