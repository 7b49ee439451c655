"""Draw where heads look: as a vision transformer begins, by initialisation, or through a run, as an animation.

    python -m benchmarks.drawing.attention initial                        # docs/img/initial-attention.png
    python -m benchmarks.drawing.attention centres runs/cordonnier_quadratic_tiny centres.gif

The former has the setting of Zheng, Li and Lucey (§5.2, Fig. 7 to 9): 16×16 patches of 2 pixels, six blocks of eight
heads; the latter is of an attentional network.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from timm.models.vision_transformer import VisionTransformer

import tcnn
from tcnn.analysis.plots import style
from tcnn.analysis.plots.centres import animate
from tcnn.training.runs.rundir import RunDirectory
from tcnn.vit.initialise import photograph_noise
from tcnn.vit.model import attention_inputs, query_key_logits

OUT = Path(__file__).parents[2] / "docs" / "img" / "initial-attention"
BLOCKS = (0, 2, 5)
SHOWN = slice(96, 160)
"""Four rows of the grid in its middle."""
ROWS: list[tuple[str, Any]] = [("timm's own", "default"), ("mimetic", "mimetic"), ("impulse", "impulse")]


def maps(kind: Any) -> list[torch.Tensor]:
    """Attention (N, N) of the first head of some blocks, on one image of noise with the spectrum of photographs."""
    torch.manual_seed(0)
    model = VisionTransformer(
        img_size=32, patch_size=2, embed_dim=512, depth=6, num_heads=8, class_token=False, global_pool="avg"
    ).eval()
    tcnn.initialise(model, kind, seed=1)
    image = photograph_noise(model, torch.Generator().manual_seed(1))[:1]
    with torch.no_grad():
        found = [query_key_logits(attention, z, 0)[0].softmax(1) for attention, z in attention_inputs(model, image)]
    return [found[block] for block in BLOCKS]


def initial() -> None:
    """The picture of the documentation."""
    made = Figure(figsize=(7.2, 7.6), layout="constrained")
    axes = made.subplots(len(ROWS), len(BLOCKS), squeeze=False)
    for row, (name, kind) in zip(axes, ROWS, strict=True):
        for at, block, found in zip(row, BLOCKS, maps(kind), strict=True):
            drawn = at.imshow(found[SHOWN, SHOWN], cmap="viridis", vmin=0, vmax=0.6, interpolation="nearest")
            at.set_xticks([]), at.set_yticks([])
            if kind == ROWS[0][1]:
                at.set_title(f"block {block + 1}", fontsize=style.SMALL + 1, color=style.INK)
        row[0].set_ylabel(f"{name}\nquery", fontsize=style.SMALL + 1, color=style.INK)
    for at in axes[-1]:
        at.set_xlabel("key", fontsize=style.SMALL, color=style.INK)
    made.colorbar(drawn, ax=axes, shrink=0.4, label="attention weight")
    style.write(made, OUT, kinds=("png",), force=True)


def centres(run: Path, out: Path) -> None:
    """The animation of a run, a picture an epoch."""
    print(animate(RunDirectory(run).rows("epoch"), out, force=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    what.add_parser("initial", help="before training, by initialisation")
    run = what.add_parser("centres", help="through a run")
    run.add_argument("run", type=Path, help="the directory of a run: runs/cordonnier_quadratic_tiny")
    run.add_argument("out", type=Path, help="a .gif file, which is replaced")
    options = parser.parse_args()
    if options.what == "initial":
        initial()
    else:
        centres(options.run, options.out)


if __name__ == "__main__":
    main()
