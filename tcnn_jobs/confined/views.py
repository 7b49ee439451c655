"""Images that are looked at: one picked from a data set, and each as a run's checkpoints see it, at any temperature.

A view is encoded when it is first asked for.
"""

from collections import OrderedDict
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tcnn.characters import spellings
from tcnn.errors import RequestError, shorten

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tcnn.analysis.attention import Encoded

KEPT = 8
"""Views of an image that are kept, its first one not counted: a slider that is drawn goes by many."""
GOLDEN = 0.618033988749895
"""Step of the low-discrepancy sequence (1/φ) by which images are picked evenly from a sorted data set."""
OTHERS = 2
"""Checkpoints that are held in memory beside the job's own."""

View = tuple[str | None, float | None]


def picked(folder: Path, number: int, file: str | None = None) -> Path:
    """Path of a data set's image by name, or the `number`-th of a sequence over all classes; raises `RequestError`.

    Of a name that ends several, as in train/ and in val/, it is not the one that was trained on.
    """
    from tcnn.data.sources.folder import walk
    from tcnn.data.sources.names import sort_key

    names = sorted(walk(folder)[0], key=sort_key)
    if not names:
        raise RequestError("the data set has no images")
    if file is not None:
        found = {one: [name for name in names if f"/{name}".endswith(f"/{one}")] for one in spellings(file)}
        spelt, ends = next(((one, ends) for one, ends in found.items() if ends), (file, []))
        if not ends:
            raise RequestError(f"the data set has no image {shorten(file, 120)!r}; name it with its class's folder")
        return folder / min(ends, key=lambda name: (name != spelt, name.startswith("train/")))
    return folder / names[int((number * GOLDEN + 0.5) % 1 * len(names))]


@dataclass
class Seen:
    """An image as the model takes it, (1, C, H, W), and what each view of it has encoded."""

    batch: "Tensor"
    views: "OrderedDict[View, Encoded]" = field(default_factory=OrderedDict)


class Views:
    """The job's model and other checkpoints of its run, at their own temperatures or at others."""

    def __init__(self, model: "nn.Module") -> None:
        self._model = model
        self._others: OrderedDict[str, nn.Module] = OrderedDict()

    def look(self, seen: Seen, checkpoint: str | None = None, temperature: float | None = None) -> "Encoded":
        """The image through a model; raises `CheckpointError` if the file cannot be loaded."""
        from tcnn.analysis.attention import encode
        from tcnn.models.running import at_temperature

        view = checkpoint, temperature
        if view in seen.views:
            seen.views.move_to_end(view)
            return seen.views[view]
        model = self._model if checkpoint is None else self._other(checkpoint)
        with nullcontext() if temperature is None else at_temperature(model, temperature):
            encoded = encode(model, seen.batch)
        seen.views[view] = encoded
        while len(seen.views) > KEPT + 1:
            oldest = next(one for one in seen.views if one != (None, None))
            del seen.views[oldest]
        return encoded

    def _other(self, file: str) -> "nn.Module":
        from tcnn.checkpoints import checkpoint

        if file not in self._others:
            self._others[file] = checkpoint.load(file).eval()
            while len(self._others) > OTHERS:
                self._others.popitem(last=False)
        self._others.move_to_end(file)
        return self._others[file]
