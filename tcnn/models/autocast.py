"""Whether a processor has arithmetic for 16-bit floats, or PyTorch emulates it, many times slower than float32."""

import torch


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
