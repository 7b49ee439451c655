"""Pages of `tcnn export --explorer`: models for them, a file server, and what a page computes beside Python."""

import contextlib
import functools
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import tiny_runs
import torch
from browsing import HOSTILE
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from torch import nn

import tcnn as library
from tcnn.analysis.attention import encode
from tcnn.evaluation.evaluate import transform_for
from tcnn.explorer import network
from tcnn.explorer.export import describe_page, page_files
from tcnn.layers.terms import kinds

SIZE = (48, 40)
"""Of which the layer has 6×5 queries."""
CFG = {
    "input_size": (3, *SIZE), "mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.25), "interpolation": "bicubic",
    "crop_pct": 0.875, "crop_mode": "center", "label_names": ["blue", HOSTILE, "red"],
}  # fmt: skip
LOOK = """async ([tensor, places]) => {
  const model = await (await fetch("model.json")).json();
  const network = await (await import("./network.js")).load(model, () => {});
  const { logits, at } = await network.look(new Float32Array(tensor));
  const told = ({ query, maps }) => ({ query,
    ...Object.fromEntries(Object.entries(maps).map(([part, values]) => [part, Array.from(values)])) });
  return { logits: Array.from(logits), places: places.map((place) => at(place).map(told)) };
}"""


def t_cnn(content: str = "global", position: str = "isotropic", content_heads: int = 0) -> nn.Module:
    """At τ = 1, with gates and centres of every kind."""
    model, _ = library.convert(
        tiny_runs.seeded(tiny_runs.TwoConvs).eval(), target="last", content=content, temperature=1.0,
        position=position, content_heads=content_heads,
    )  # fmt: skip
    layer: Any = model.last
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        layer.query.normal_()
        layer.key.normal_()
        layer.gating_param.copy_(torch.linspace(-3, 3, 9))
        for name in kinds.NAMES[layer.position]:
            getattr(layer, name).add_(
                0.3 if name == "attention_centers" else 0.3 * torch.randn(getattr(layer, name).shape)
            )
    return model


class Beside(nn.Module):
    """The sum of networks."""

    def __init__(self, *networks: nn.Module) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.pretrained_cfg = CFG

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([each(x) for each in self.networks]).sum(0)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Python's own file server, which knows nothing of the page."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def recorded(model: nn.Module, image: Path, folder: Path) -> None:
    """The page of a network that knows its outputs for one image by heart, and needs no translation."""
    batch = transform_for(model)(Image.open(image)).unsqueeze(0)
    with torch.no_grad():
        found = network.WithAttention(model)(batch)
    constants = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(output.numpy(), name))
        for name, output in found.items()
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, each.shape) for name, each in found.items()]
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, batch.shape)
    graph = helper.make_graph(constants, "recorded", [images], outputs)
    folder.mkdir()
    for name, content in page_files():
        (folder / name).write_bytes(content)
    onnx = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (folder / "model.onnx").write_bytes(onnx.SerializeToString())
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    (folder / "model.json").write_text(json.dumps({**describe_page(model, batch), "files": sizes}))


def compared(model: nn.Module, page: Any, images: list[Path]) -> None:
    """What the page computes of images against `encode`."""
    places = [(0.0, 0.0), (0.5, 0.3), (0.999, 0.9)]
    for file in images:
        batch = transform_for(model)(Image.open(file)).unsqueeze(0)
        encoded = encode(model, batch)
        found = page.evaluate(LOOK, [batch.flatten().tolist(), places])
        numpy.testing.assert_allclose(found["logits"], encoded.output[0].detach(), rtol=1e-4, atol=1e-5)
        for place, layers in zip(places, found["places"], strict=True):
            for layer, expected in zip(layers, encoded.at(place), strict=True):
                assert tuple(layer["query"]) == expected.query
                for part in ("content", "positional", "combined"):
                    maps = getattr(expected, part).detach().flatten()
                    numpy.testing.assert_allclose(layer[part], maps, atol=1e-6)
