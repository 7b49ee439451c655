"""The animation of where heads look: a frame an epoch, a panel a layer, circles of the Gaussians' shares."""

import math
from pathlib import Path

import pytest
from matplotlib.patches import Circle
from PIL import Image

from tcnn.analysis.plots.centres import animate, frames
from tcnn.errors import RequestError

LAYER = {"centres": [[0.0, 1.0], [-2.0, 0.5]], "strengths": [1.0, 0.25]}
ROWS = [
    {"kind": "epoch", "epoch": 1, "looking": {"blocks.0.attn": LAYER, "blocks.1.attn": LAYER}},
    {"kind": "epoch", "epoch": 2, "looking": {"blocks.0.attn": LAYER, "blocks.1.attn": LAYER}},
]


def test_a_frame_for_every_epoch(tmp_path: Path) -> None:
    file = animate(ROWS, tmp_path / "centres.gif")
    with Image.open(file) as image:
        assert image.n_frames == 2
    first = frames(ROWS)[0].axes[0]
    circles = [patch for patch in first.patches if isinstance(patch, Circle)]
    assert [(circle.center, round(circle.radius**2, 3)) for circle in circles[:2]] == [
        ((1.0, 0.0), round(math.log(2), 3)), ((1.0, 0.0), round(math.log(10), 3)),
    ]  # fmt: skip
    assert len(frames(ROWS)[0].axes) == 2 and len(circles) == 4


def test_a_run_without_centres_is_refused() -> None:
    with pytest.raises(RequestError, match="says nothing of centres"):
        frames([{"kind": "epoch", "epoch": 1}])
