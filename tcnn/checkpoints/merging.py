"""What timm's `reparameterize_model` merged in a model: found by building that anew, recorded in a file, done again.

A model is merged before its conversion or after it. After it, blocks that attend stay as they are
(`tcnn.conversion.timm_tools`), and so they do where folding later makes their attention convolutions again: such blocks
have stayed apart.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Literal, NamedTuple

from timm.models import reparameterize_model
from torch import nn

from tcnn.checkpoints.edits import describe
from tcnn.conversion.report import ConversionReport
from tcnn.conversion.surgery import rebuild
from tcnn.conversion.timm_tools import METHODS, attends, keep_whole, mergeable_parts
from tcnn.errors import CheckpointError, UnsupportedLayerError
from tcnn.models.copying import copied
from tcnn.models.running import place_of
from tcnn.zoo.sources import without_data

MERGED = "merged"
"""The section of a file whose model was merged: `before` its conversion, or `after` it."""
APART = "apart"
"""The section of the names of blocks that stayed apart, though nothing in them attends; if there are any."""


class Merging(NamedTuple):
    """What timm merged in a model."""

    when: Literal["before", "after"]
    """As seen from the conversion."""
    apart: tuple[str, ...] = ()
    """Names of blocks that stayed apart, besides those that attend."""

    def sections(self) -> dict[str, str]:
        """Of a file's metadata."""
        return {MERGED: self.when} | ({APART: json.dumps(self.apart)} if self.apart else {})


def merging_in(metadata: Mapping[str, str], name: str) -> Merging | None:
    """What a file's metadata tell of it; raises `CheckpointError` for what tcnn has not written."""
    when = metadata.get(MERGED)
    if when is None:
        return None
    try:
        apart = json.loads(metadata.get(APART, "[]"))
    except ValueError:
        apart = None
    if when in ("before", "after") and isinstance(apart, list) and all(isinstance(one, str) for one in apart):
        return Merging("before" if when == "before" else "after", tuple(apart))
    raise CheckpointError(f"{name}: what it says of its merged convolutions is damaged; copy or download it again")


def can_merge(model: nn.Module) -> bool:
    """Whether there is a block in a model that timm asks to merge."""
    return any(map(_methods, model.modules()))


def mergings(model: nn.Module, base: nn.Module, report: ConversionReport) -> Iterator[Merging]:
    """What may have been merged in a model, the likeliest first.

    Args:
        base: the architecture that was converted, not merged, without data.
        report: how it was converted.
    """
    if not can_merge(base):
        return
    try:
        converted = rebuild(base, report)
    except UnsupportedLayerError:  # what was converted is made by merging
        pass
    else:
        yield Merging("after")
        if apart := _apart(model, converted):
            yield Merging("after", apart)
    yield Merging("before")
    if apart := _apart(model, base):
        yield Merging("before", apart)


def rebuilt_and_merged(base: nn.Module, report: ConversionReport, merging: Merging | None) -> nn.Module:
    """The conversion of a CNN, with what timm can merge in it merged before or after, if that was done."""
    made = rebuild(merged_before(base, merging), report)
    return _merge(made, merging.apart) if merging is not None and merging.when == "after" else made


def merged_before(base: nn.Module, merging: Merging | None) -> nn.Module:
    """The CNN that was converted, of its architecture: merged, if that was done before."""
    return _merge(base, merging.apart) if merging is not None and merging.when == "before" else base


def _merge(model: nn.Module, apart: Collection[str]) -> nn.Module:
    """A copy of a model that timm has merged but for these blocks, which can be merged later."""
    made = copied(model)
    blocks = [block for name, block in made.named_modules() if name in apart]
    parts = [mergeable_parts(block) for block in blocks]
    place = without_data() if place_of(model).type == "meta" else nullcontext()  # where what is made for it belongs
    with place, _staying(blocks):
        merged = reparameterize_model(made, inplace=True)
    for block, own in zip(blocks, parts, strict=True):
        keep_whole(block, own)
    return merged


@contextmanager
def _staying(blocks: Collection[nn.Module]) -> Iterator[None]:
    """Context in which these blocks stay as they are when timm asks them to merge."""
    places = [(vars(block), method, partial(_itself, block)) for block in blocks for method in _methods(block)]
    before = [own.get(method) for own, method, _ in places]
    for own, method, stay in places:
        own[method] = stay
    try:
        yield
    finally:
        for (own, method, _), was in zip(places, before, strict=True):
            if was is None:
                del own[method]
            else:
                own[method] = was


def _itself(block: nn.Module) -> nn.Module:
    return block


def _methods(block: nn.Module) -> list[str]:
    return [method for method in METHODS if hasattr(type(block), method)]


def _apart(model: nn.Module, plain: nn.Module) -> tuple[str, ...]:
    """Names of the blocks that timm can merge, and that are in the model what they are where nothing was merged."""
    ours = dict(model.named_modules())
    return tuple(
        name
        for name, block in plain.named_modules()
        if name and _methods(block) and not attends(block) and _outline(ours.get(name)) == _outline(block)
    )


def _outline(block: nn.Module | None) -> tuple[object, frozenset[str]] | None:
    """The kind of a block and the names of its parts: to merge it is to replace one or the other."""
    return None if block is None else (describe(block)["module"], frozenset(name for name, _ in block.named_children()))
