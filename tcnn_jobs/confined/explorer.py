"""The sandboxed inference process of a checkpoint: attention maps and predictions for images, on request.

`python -m tcnn_jobs.confined.explorer PARENT MEMORY CHECKPOINT`, started by `explorers`: the parent's process id, the
memory limit in bytes, a file. It reads request frames from stdin and writes one response frame to stdout for each.
Untrusted images are decoded, and the model runs, within that limit; in the server only this process loads torch.
"""

import base64
import io
import os
import resource
import secrets
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tcnn.errors import EnvironmentFailure, RequestError, TcnnError, one_line, shorten
from tcnn.processes import QuickExit, die_with_parent, loading
from tcnn_jobs.confined.predicting import Predicting
from tcnn_jobs.confined.process import GONE, OK, REFUSED, read, write
from tcnn_jobs.confined.views import Seen, Views, picked

if TYPE_CHECKING:
    from torch import Tensor

    from tcnn.analysis.recorded import RecordedLayer

KEPT = 4
"""Capacity of the LRU cache of encoded images."""
THREADS = 4
"""Number of threads at most; fewer where there are fewer cores, or where `OMP_NUM_THREADS` says so."""
BEST = 3
"""Number of top predictions in a response."""


class Explorer:
    """A model and an LRU cache of the images it has encoded."""

    def __init__(self, checkpoint: str) -> None:
        with loading():
            import torch

            from tcnn.checkpoints import checkpoint as checkpoints

        torch.set_num_threads(min(THREADS, torch.get_num_threads()))
        self.model = checkpoints.load(checkpoint).eval()
        self.predict = Predicting(self.model)
        self.views = Views(self.model)
        self.images: OrderedDict[str, Seen] = OrderedDict()

    def open(
        self, source: io.BytesIO | Path, truth: str | None = None, at: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Encode an image: one forward pass, whose queries and keys are cached for the maps that `at` computes.

        With the arguments of `at` the answer has those maps, too, and the image is not kept: who asks so may come to
        another server the next time.

        Raises `RequestError` for what is no image, or for one that the model does not run on.
        """
        from tcnn.analysis.images import seen
        from tcnn.data.decode import UnreadableImage, mode_of
        from tcnn.data.transforms import load_image
        from tcnn.evaluation.evaluate import transform_for
        from tcnn.models.trace import input_shape

        try:
            batch = load_image(source, transform_for(self.model), mode_of(input_shape(self.model)[0])).unsqueeze(0)
        except UnreadableImage as error:
            raise RequestError(f"cannot be read as an image ({shorten(error.reason, 120)}); send another") from error
        kept = Seen(batch)
        encoded = self.views.look(kept)
        identifier = f"img_{secrets.token_hex(8)}"
        self.images[identifier] = kept
        while len(self.images) > KEPT:
            self.images.popitem(last=False)
        attention = None
        if at is not None:
            attention = self.at(identifier, **at)
            del self.images[identifier]
        pixels = seen(batch, self.model)[0]
        return {
            "id": identifier,
            "width": pixels.shape[1],
            "height": pixels.shape[0],
            "picture": _png(pixels),
            "truth": truth and shorten(truth, 200),
            "says": self._says(encoded.output),
            "layers": [_layer(name, kept) for name, kept in encoded.layers.items()],
            "notes": list(encoded.notes),
            "attention": attention,
        }

    def at(
        self, identifier: str, y: float, x: float, checkpoint: str | None = None, temperature: float | None = None
    ) -> dict[str, Any]:
        """Attention maps of every head of every layer for the query at (y, x), both 0 to 1 from the top left.

        Maps are (K, H, W) in float32, base64; `content` is the softmax over all keys, `positional` the positional
        attention, `gate` its share for each head. With `checkpoint` those of another file of the run, with
        `temperature` at another τ than the model's own. Raises `KeyError` for an image that is no longer cached.
        """
        from tcnn.analysis.measures import circles

        seen = self.images[identifier]
        self.images.move_to_end(identifier)
        encoded = self.views.look(seen, checkpoint, temperature)
        return {
            "says": self._says(encoded.output),
            "layers": [
                {
                    "name": layer.name,
                    "size": layer.size,
                    "padding": layer.padding,
                    "query": layer.query,
                    "gate": layer.gates,
                    "temperature": encoded.layers[layer.name].temperature,
                    **circles(encoded.layers[layer.name]),
                    "content": _packed(layer.content[0]),
                    "positional": None if layer.positional is None else _packed(layer.positional_of(0)),
                }
                for layer in encoded.at((y, x))
            ],
        }

    def _says(self, output: Any) -> list[dict[str, Any]]:
        import torch

        from tcnn.evaluation.outputs import first

        if not isinstance(output, torch.Tensor) or output.dim() != 2:
            return []
        shares, numbers = (each[0] for each in first(output[:1].float(), BEST))
        labels = self._labels(output.shape[1])
        return [
            {"label": str(labels[n])[:200] if n < len(labels) else f"class {n}", "share": share}
            for share, n in zip(shares.tolist(), numbers.tolist(), strict=True)
        ]

    def _labels(self, count: int) -> Sequence[str]:
        """Names of the classes: the checkpoint's own, or where it tells ImageNet's apart what those are called."""
        from timm.data import ImageNetInfo, infer_imagenet_subset

        own = (getattr(self.model, "pretrained_cfg", None) or {}).get("label_names") or ()
        subset = None if own else infer_imagenet_subset(self.model)
        info = ImageNetInfo(subset) if subset else None
        if info is None or info.num_classes() != count:
            return list(own)
        return [info.index_to_description(number).partition(",")[0] for number in range(count)]


def _layer(name: str, kept: "RecordedLayer") -> dict[str, Any]:
    return {
        "name": name,
        "heads": kept.heads,
        "kernel": None if kept.geometry is None else kept.geometry.kernel_size,
        "size": kept.grid.size,
        "padding": kept.grid.padding,
        "queries": kept.grid.queries,
        "first": kept.grid.first,
        "stride": kept.grid.stride,
        "gate": kept.gates,
        "temperature": kept.temperature,
    }


def _packed(maps: "Tensor") -> str:
    """(K, H, W) as base64 of little-endian float32."""
    return base64.b64encode(maps.detach().cpu().float().contiguous().numpy().astype("<f4").tobytes()).decode()


def _png(pixels: Any) -> str:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def answers(explorer: Explorer, requests: BinaryIO) -> Iterator[tuple[int, Any]]:
    """(status, body) for each request frame, until the parent closes the pipe. Raises nothing for a bad request."""
    while (frame := read(requests)) is not None:
        asked, image = frame
        try:
            if asked["do"] == "open":
                folder = asked.get("folder")
                if folder:
                    file = picked(Path(folder), asked["number"], asked.get("file"))
                    yield (
                        OK,
                        explorer.open(file, file.parent.name, asked.get("at")),
                    )  # images lie in folders of their classes
                else:
                    yield OK, explorer.open(io.BytesIO(image), at=asked.get("at"))
            elif asked["do"] == "predict":
                yield OK, explorer.predict(image, asked["others"], asked["top"])
            else:
                yield (
                    OK,
                    explorer.at(
                        asked["image"], asked["y"], asked["x"], asked.get("checkpoint"), asked.get("temperature")
                    ),
                )
        except KeyError:
            yield GONE, {"error": "the image is no longer kept; send it again"}
        except (MemoryError, EnvironmentFailure):  # the latter is PIL's way to the same
            explorer.images.clear()
            yield REFUSED, {"error": "looking at it needs more memory than it may have; send a smaller image"}
        except TcnnError as error:
            yield REFUSED, {"error": one_line(error)}


def main(parent: str, memory: str, checkpoint: str) -> None:
    """Set the memory limit (RLIMIT_DATA, bytes), load the checkpoint, and serve frames until the parent is gone."""
    die_with_parent(parent=int(parent))
    resource.setrlimit(resource.RLIMIT_DATA, (int(memory), int(memory)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Whatever a library prints must not come between the frames.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        explorer = Explorer(checkpoint)
    except TcnnError as error:
        write(out, REFUSED, {"error": one_line(error).replace(checkpoint, "the checkpoint")})
        return
    write(out, OK, {})
    for status, said in answers(explorer, sys.stdin.buffer):
        write(out, status, said)


if __name__ == "__main__":
    leave = QuickExit()
    main(*sys.argv[1:])
    leave(0)
