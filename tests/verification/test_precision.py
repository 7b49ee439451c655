"""float32 is float32 while models are compared, and afterwards every setting is, and inherits, what it did.

These settings are the process's, and some cannot be undone, so every case has a process of its own.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from forked import processes
from torch import nn

from tcnn.conversion.surgery import convert
from tcnn.models.precision import GENERIC, PLACES, exact_arithmetic
from tcnn.verification.verify import verify

pytestmark = pytest.mark.skipif(
    not hasattr(torch._C, "_set_fp32_precision_setter"), reason="one interface only: PyTorch's new one is from 2.9"
)


def nothing() -> None:
    pass


def high() -> None:
    torch.set_float32_matmul_precision("high")


def medium() -> None:
    torch.set_float32_matmul_precision("medium")


def tf32_matmul() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True


def no_tf32_convolution() -> None:
    torch.backends.cudnn.allow_tf32 = False


def new_tf32() -> None:
    torch.backends.fp32_precision = "tf32"


def new_ieee() -> None:
    torch.backends.fp32_precision = "ieee"


def new_tf32_matmul() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"


def new_cuda() -> None:
    torch.backends.cudnn.fp32_precision = "tf32"


def new_bfloat16_matmul() -> None:
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


def both() -> None:
    medium()
    new_tf32()


def high_with_another_cpu() -> None:
    high()
    torch.backends.mkldnn.matmul.fp32_precision = "none"


SETTINGS = [
    nothing, high, medium, tf32_matmul, no_tf32_convolution, new_tf32, new_ieee, new_tf32_matmul, new_cuda,
    new_bfloat16_matmul, both, high_with_another_cpu,
]  # fmt: skip
QUICK = [nothing, high, tf32_matmul, new_tf32, both, high_with_another_cpu]
"""Each way to set them, alone and with another; the other settings are slow."""
LATER = [nothing, new_ieee, new_tf32, medium]


def readings() -> dict[str, object]:
    """What every interface says, or that it refuses to."""
    legacy: dict[str, Callable[[], object]] = {
        "matmul": torch.get_float32_matmul_precision,
        "cublas": lambda: torch.backends.cuda.matmul.allow_tf32,
        "cudnn": lambda: torch.backends.cudnn.allow_tf32,
    }
    found: dict[str, object] = {".".join(p): torch._C._get_fp32_precision_getter(*p) for p in (GENERIC, *PLACES)}
    for name, read in legacy.items():
        try:
            found[name] = read()
        except RuntimeError:
            found[name] = "refused"
    return found


def seen(setting: Callable[[], None], enter: bool) -> list[dict[str, object]]:
    """Readings within, afterwards, and after each further change of a setting that others may inherit."""
    setting()
    with exact_arithmetic() if enter else nullcontext():
        found = [readings()]
    for later in LATER:
        later()
        found.append(readings())
    return found


def verified(setting: Callable[[], None]) -> bool:
    setting()
    torch.manual_seed(0)
    source = nn.Sequential(nn.Conv2d(3, 32, 3), nn.Conv2d(32, 32, 3))
    return verify(source, convert(source).model, input_size=(12, 12)).passed


def apart(call: Callable[..., Any], *arguments: object) -> Any:
    """What a call returns in a process of its own, forked from one in which nothing was set yet."""
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=fork) as pool:
        return pool.submit(call, *arguments).result()


def everything(settings: list[Callable[[], None]]) -> dict[str, Any]:
    """All that is measured, by the names of the settings."""
    return {
        "entered": {setting.__name__: apart(seen, setting, True) for setting in settings},
        "never": {setting.__name__: apart(seen, setting, False) for setting in settings},
        "verified": {
            setting.__name__: apart(verified, setting) for setting in settings if setting in (medium, new_tf32, both)
        },
    }


@pytest.fixture(
    scope="module", params=[pytest.param(True, id="quick"), pytest.param(False, id="others", marks=pytest.mark.slow)]
)
def found(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    with ProcessPoolExecutor(1, mp_context=processes) as pool:
        yield pool.submit(everything, [one for one in SETTINGS if (one in QUICK) == request.param]).result()


def test_everything_is_exact_within(found: dict[str, Any]) -> None:
    for name, (within, *_) in found["entered"].items():
        assert {value for place, value in within.items() if "." in place} == {"ieee"}, name
        assert (within["matmul"], within["cublas"]) == ("highest", False), name


def test_nothing_is_left_behind(found: dict[str, Any]) -> None:
    for name, (_, *after) in found["entered"].items():
        assert after == found["never"][name][1:], name


def test_verification_passes_whatever_is_set(found: dict[str, Any]) -> None:
    assert all(found["verified"].values()), found["verified"]
