"""What a job's model says of an image, and beside it the CNNs that it came from: run in the explorer's process.

The CNN that was converted is had from the conversion itself, which undoes exactly: nothing is downloaded, and it is
the very one, random weights and all.
"""

import io
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tcnn.errors import DownloadError, EnvironmentFailure, RequestError, TcnnError, one_line
from tcnn_jobs.errors import for_requests

if TYPE_CHECKING:
    from torch import nn

GONE = "the CNN's weights are not on this server"


class Predicting:
    """A job's model, and those beside it, which are loaded when they are first asked for."""

    def __init__(self, model: "nn.Module") -> None:
        self.model = model
        self._loaded: dict[tuple[str, str], tuple[str, nn.Module] | str] = {}

    def __call__(self, image: bytes, others: Sequence[Mapping[str, str]], top: int) -> dict[str, Any]:
        """The answers of all models, the job's own last.

        Args:
            image: the bytes of a file.
            others: the models beside it: `role`, and `path`, the `name` of a timm model, or why it is `missing`.
            top: classes that are told of each.

        Raises: `RequestError` for what is no image.
        """
        from tcnn.models.running import gpsa_layers

        own = "t_cnn" if gpsa_layers(self.model) else "tuned_cnn"
        last = _said(own, self.model, image)  # first: what is no image costs no model
        models: list[dict[str, Any]] = []
        for other in others:
            models.append(self._other(other, image, last["guesses"]))
        return _compared([*models, last], top)

    def _other(self, other: Mapping[str, str], image: bytes, own: list[dict[str, Any]]) -> dict[str, Any]:
        """The answer of a model beside the job's own, or why it gives none."""
        found = self._found(other)
        if not isinstance(found, str):
            try:
                return self._worded(_said(*found, image), found[1], own)
            except RequestError as error:  # the image is one, so that it is the model's output
                found = one_line(error)
        return {"role": other["role"], "missing": found, "guesses": []}

    def _worded(self, said: dict[str, Any], model: "nn.Module", own: list[dict[str, Any]]) -> dict[str, Any]:
        """Where a model names none of its classes, and has as many as the job's, it began the job with these."""
        labels = (getattr(model, "pretrained_cfg", None) or {}).get("label_names")
        if not labels and len(said["guesses"]) == len(own):
            names = {guess["index"]: guess["name"] for guess in own}
            said["guesses"] = [{**guess, "name": names[guess["index"]]} for guess in said["guesses"]]
        return said

    def _found(self, other: Mapping[str, str]) -> "tuple[str, nn.Module] | str":
        """The model with its role, or why it is not there."""
        if "missing" in other:
            return other["missing"]
        key = other["role"], other.get("path") or other["name"]
        if key not in self._loaded:
            try:
                self._loaded[key] = _named(other["name"]) if "name" in other else _before(other["role"], other["path"])
            except DownloadError:
                self._loaded[key] = GONE
            except EnvironmentFailure:  # memory; another time it may be there
                raise
            except TcnnError as error:
                self._loaded[key] = for_requests(one_line(error).replace(key[1], "the CNN"))
        return self._loaded[key]


def _before(role: str, path: str) -> "tuple[str, nn.Module]":
    """A checkpoint of this server's: as the CNN, if it is nothing but that in another form."""
    from tcnn.checkpoints import checkpoint
    from tcnn.errors import NothingToConvertError, VerificationError
    from tcnn.folding.fold import fold
    from tcnn.models.running import gpsa_layers

    model = checkpoint.load(path).eval()
    if role != "cnn" or not gpsa_layers(model):
        return role, model
    try:
        folded, report = fold(model)
    except (NothingToConvertError, VerificationError):
        return "before", model
    return ("cnn", folded.eval()) if report.complete else ("before", model)


def _named(name: str) -> "tuple[str, nn.Module]":
    """A timm model whose weights somebody has fetched to this host before."""
    from tcnn.checkpoints.opening import open_model

    return "cnn", open_model(name).eval()


def _compared(models: list[dict[str, Any]], top: int) -> dict[str, Any]:
    """The answers, cut to the first, and whether they are one: of models with the classes of the last alone."""
    classes = {guess["name"] for guess in models[-1]["guesses"]}
    first = []
    for one in models:
        one["same_classes"] = {guess["name"] for guess in one["guesses"]} == classes if one["guesses"] else None
        one["guesses"] = one["guesses"][:top]
        if one["same_classes"]:
            first.append(one["guesses"][0]["name"])
    return {"models": models, "same_first_guess": len(set(first)) == 1 if len(first) > 1 else None}


def _said(role: str, model: "nn.Module", image: bytes) -> dict[str, Any]:
    """What a model says of every class it has."""
    from tcnn.evaluation.predict import predict_image

    guesses = predict_image(model, io.BytesIO(image), top=sys.maxsize)
    return {"role": role, "missing": None, "guesses": [guess.model_dump() for guess in guesses]}
