"""Precision of a device's arithmetic: exact float32 while models are compared, and 16-bit floats that are emulated.

Exact means without TF32 and bfloat16 in matrix products and convolutions: ten bits of mantissa (TF32, what convolutions
use on a GPU by default) or seven (bfloat16, after `torch.set_float32_matmul_precision("medium")` on CPUs that have it)
would be taken for a conversion error.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from tcnn.layers.filters import is_standardised
from tcnn.layers.gpsa import GPSA2d

Place = tuple[str, str]
"""A backend and one of its operators, as PyTorch names them."""
GENERIC: Place = ("generic", "all")
MATMULS: tuple[Place, ...] = (("cuda", "matmul"), ("mkldnn", "matmul"))
PLACES: tuple[Place, ...] = (
    ("cuda", "all"), MATMULS[0], ("cuda", "conv"), ("cuda", "rnn"),
    ("mkldnn", "all"), MATMULS[1], ("mkldnn", "conv"), ("mkldnn", "rnn"),
)  # fmt: skip
"""Every backend before its operators, which inherit from it as it does from `GENERIC`."""


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Context with exact float32 products on every device; afterwards all settings are as before, inheritance included.

    PyTorch keeps two interfaces to these settings and refuses to read the old one (`allow_tf32`,
    `get_float32_matmul_precision`) where the new one (`fp32_precision`, from torch 2.9) says otherwise, so neither is
    read or written without the other.
    """
    matmul = _matmul_precision()
    if not hasattr(torch._C, "_set_fp32_precision_setter"):  # torch 2.8
        convolutions = torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(matmul or "highest")
            torch.backends.cudnn.allow_tf32 = convolutions
        return
    before = _explicit()
    if matmul not in (None, "highest"):
        torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        if matmul not in (None, "highest"):  # this also writes both matmuls, so their own settings come after it
            torch.set_float32_matmul_precision(matmul)
            before = dict.fromkeys(MATMULS, "none") | before
        for place, precision in reversed(before.items()):
            torch._C._set_fp32_precision_setter(*place, precision)


def _explicit() -> dict[Place, str]:
    """Set exact arithmetic everywhere and return the settings that were explicit, not inherited."""
    before = {}
    for place in (GENERIC, *PLACES):
        precision = torch._C._get_fp32_precision_getter(*place)
        if place == GENERIC or precision != "ieee":
            before[place] = precision
            torch._C._set_fp32_precision_setter(*place, "ieee")
    return before


def _matmul_precision() -> str | None:
    """`torch.get_float32_matmul_precision()`, or None where the new interface has made it unreadable."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def filters_are_rounded(source: nn.Module, converted: nn.Module) -> bool:
    """Whether the converted model stores filters that its source standardises before every use, rounded below float64.

    Attention holds the standardised filter itself, so the two differ by its rounding in float64, too.
    """
    layers = dict(source.named_modules())
    return any(
        layer.proj.dtype != torch.float64 and is_standardised(layers.get(name, layer))
        for name, layer in converted.named_modules()
        if isinstance(layer, GPSA2d)
    )


def emulated(amp: str, device: torch.device) -> str | None:
    """A note for the user where autocast to `amp` costs time on a device instead of saving it; None where it does not.

    Processors without AVX-512 convert every operand and result: a convolution took twenty times as long as in float32
    on an AMD EPYC of the third generation. `auto` is float32 on a processor.
    """
    if amp in ("auto", "float32") or device.type != "cpu" or _native(amp):
        return None
    return f"amp {amp}: this processor has no arithmetic for it, so it takes many times as long as float32 here"


def _native(amp: str) -> bool:
    """What oneDNN says; true where this build of PyTorch does not tell."""
    short = {"bfloat16": "bf16", "float16": "fp16"}[amp]
    asked = getattr(torch.ops.mkldnn, f"_is_mkldnn_{short}_supported", None)
    return asked is None or bool(asked())
