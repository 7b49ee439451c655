"""How often heads look where impulse initialisation says, on photographs that it has not seen: docs/papers.md's table.

python -m benchmarks.models.initial_hits --data FOLDER
"""

import argparse
from typing import Any

import numpy
import timm
import torch
from PIL import Image
from timm.models.vision_transformer import VisionTransformer

import tcnn
from tcnn.data.image_set import ImageSet, open_dataset
from tcnn.vit.impulse import hit_rate
from tcnn.vit.model import attention_inputs, checked

IMAGES = 16
NETWORKS: dict[str, dict[str, Any]] = {
    "the paper's": {
        "img_size": 32, "patch_size": 2, "embed_dim": 512, "depth": 3, "num_heads": 8, "class_token": False,
        "global_pool": "avg",
    },
    "ViT-Tiny, patches of 4": {"img_size": 32, "patch_size": 4, "embed_dim": 192, "depth": 6, "num_heads": 3},
    "vit_tiny_patch16_224": {"model": "vit_tiny_patch16_224", "depth": 3},
    "vit_small_patch16_224, registers": {
        "model": "vit_small_patch16_224", "depth": 2, "reg_tokens": 4, "no_embed_class": True
    },
    "ViT-Tiny, patches of 8": {"patch_size": 8, "embed_dim": 192, "depth": 2, "num_heads": 3},
}  # fmt: skip


def network(model: str = "", **options: Any) -> VisionTransformer:
    torch.manual_seed(0)
    made = timm.create_model(model, **options) if model else VisionTransformer(**options)
    assert isinstance(made, VisionTransformer)
    return made.eval()


def batch(data: ImageSet, size: tuple[int, int]) -> torch.Tensor:
    """Every n-th image, (B, 3, H, W), normalised by 0.5 and 0.25."""
    found = []
    for index in range(0, len(data), max(1, len(data) // IMAGES)):
        image = data.load(index)[0].convert("RGB").resize(size[::-1], Image.Resampling.BICUBIC)
        found.append(torch.from_numpy(numpy.asarray(image).copy()).permute(2, 0, 1) / 255)
    return (torch.stack(found[:IMAGES]) - 0.5) / 0.25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    data = open_dataset(parser.parse_args().data)
    for name, options in NETWORKS.items():
        model = network(**options)
        report = tcnn.initialise(model)
        images = batch(data, model.patch_embed.img_size)
        with torch.no_grad():
            tokens = checked(model)[1]
            layers = zip(attention_inputs(model, images), report.layers, strict=True)
            found = [hit_rate(attention, z, tokens, layer.offsets) for (attention, z), layer in layers]
        print(f"{name}: {'×'.join(map(str, report.grid))}", *(f"{hits:.1%} at {weight:.2f}" for hits, weight in found))


if __name__ == "__main__":
    main()
