"""Outputs of models: their tensors in whatever holds them, each with its name and by image.

Most models return (B, …). A detector returns as many numbers for each image as it finds things in it, or none.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tcnn.errors import RequestError

Rows = Tensor | tuple[Tensor, ...]
"""One output for a batch, (B, …); or the numbers of every image by themselves, where they are not equally many."""


class Output(NamedTuple):
    """One of a model's outputs for a batch."""

    name: str
    """Its keys in what holds it, as in ``hidden_states.0``; empty for a model that returns a tensor."""
    rows: Rows


Outputs = tuple[Output, ...]
"""All outputs of a model for a batch."""


def tensors(output: object) -> Iterator[Tensor]:
    """The tensors of an output in its own order: one, or several in tuples, lists, dicts and dataclasses, nested.

    Other values, such as None in the `ModelOutput` of transformers, are skipped.
    """
    return (tensor for _, tensor in named_tensors(output))


def named_tensors(output: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """`tensors` with the name of each: its keys and places in what holds it, joined by dots."""
    if isinstance(output, Tensor):
        yield name, output
        return
    parts: Iterator[tuple[object, object]] = iter(())
    if isinstance(output, Mapping):
        parts = iter(output.items())
    elif isinstance(output, tuple | list):
        parts = zip(getattr(output, "_fields", range(len(output))), output, strict=True)
    elif dataclasses.is_dataclass(output):
        parts = ((field.name, getattr(output, field.name)) for field in dataclasses.fields(output))
    for key, part in parts:
        yield from named_tensors(part, f"{name}.{key}" if name else str(key))


def separate(output: object, batch: int) -> Outputs:
    """All tensors of an output by themselves, each with a row for every image.

    A tensor without a row for each of the B images, such as an auxiliary loss, is repeated in every row. Of a list with
    an entry for each image, as detectors return it, an entry has a row of every output.
    """
    found = list(named_tensors(output))
    if not found:
        raise RequestError(
            f"expected a model that returns a tensor, or tensors in tuples, lists, dicts or dataclasses; found "
            f"{type(output).__name__}"
        )
    if isinstance(output, tuple | list) and _is_by_image(output, batch):
        # A list of one tensor, of one image, is named the same however many rows that has.
        return joined([tuple(Output(name or "0", row[None]) for name, row in named_tensors(part)) for part in output])
    return tuple(
        Output(name, tensor if tensor.shape[:1] == (batch,) else tensor.expand(batch, *tensor.shape))
        for name, tensor in found
    )


def _is_by_image(output: Sequence[object], batch: int) -> bool:
    """Whether every entry is of one image: dicts, or in a list tensors that have no row for each image."""
    if len(output) != batch:
        return False
    if all(isinstance(part, Mapping) for part in output):
        return True
    parts = [part for part in output if isinstance(part, Tensor) and part.dim() > 0]
    return isinstance(output, list) and len(parts) == batch and any(len(part) != batch for part in parts)


def joined(parts: Sequence[Outputs]) -> Outputs:
    """The outputs of parts of a batch side by side, by name; an image that lacks one has no number of it."""
    every = [dict(part) for part in parts]
    found = {name: rows for part in every for name, rows in part.items()}
    images = [max((len(rows) for rows in part.values()), default=1) for part in every]
    return tuple(
        Output(
            name,
            _side_by_side(
                [
                    part.get(name, (_first(rows).new_empty(0),) * count)
                    for part, count in zip(every, images, strict=True)
                ]
            ),
        )
        for name, rows in found.items()
    )


def _side_by_side(parts: Sequence[Rows]) -> Rows:
    """One tensor, where every image has numbers of one shape."""
    whole = [part for part in parts if isinstance(part, Tensor)]
    if len(whole) == len(parts) and len({part.shape[1:] for part in whole}) == 1:
        return torch.cat(whole)
    return tuple(row.flatten() for part in parts for row in part)


def _first(rows: Rows) -> Tensor:
    return rows if isinstance(rows, Tensor) else rows[0]


def dtypes(outputs: Outputs) -> set[torch.dtype]:
    return {_first(one.rows).dtype for one in outputs}


def padded(rows: Rows) -> Tensor:
    """One tensor, with zeros after the numbers of images that have fewer than others."""
    return rows if isinstance(rows, Tensor) else nn.utils.rnn.pad_sequence([*rows], batch_first=True)


def other_shapes(expected: Outputs, found: Outputs) -> str | None:
    """Where two models' outputs have different shapes, in words: "…, 5 in the source and 7 in the converted model".

    None where they have not.
    """
    if len(expected) != len(found):
        return f", {len(expected)} in the source and {len(found)} in the converted model"
    for one, other in zip(expected, found, strict=True):
        if (told := other_shape(one.rows, other.rows)) is not None:
            return told if len(expected) == 1 else f" ({one.name}){told}"
    return None


def other_shape(expected: Rows, found: Rows) -> str | None:
    """`other_shapes` of one output."""
    if isinstance(expected, Tensor) and isinstance(found, Tensor):
        if expected.shape == found.shape:
            return None
        source, converted = ("×".join(map(str, rows.shape[1:])) for rows in (expected, found))
        return f", {source} in the source and {converted} in the converted model"
    for image, (one, other) in enumerate(zip(expected, found, strict=False), 1):
        if one.numel() != other.numel():
            return f" of image {image}, {one.numel()} numbers in the source and {other.numel()} in the converted model"
    return None


def is_empty(outputs: Outputs) -> bool:
    """Whether there is no number for any image."""
    return not any(row.numel() for one in outputs for row in one.rows)
