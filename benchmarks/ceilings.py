"""What a machine can do at best, measured where it is compared with: large matrix products, and copies."""

from typing import NamedTuple

import torch

from benchmarks.stopwatch import timed


class Ceilings(NamedTuple):
    """The two rates that no layer exceeds for long."""

    multiply_adds: float
    """Per second, of the best of some large matrix products; a multiply-add is two FLOPs."""
    bytes: float
    """Per second, read and written, of the best large copy."""

    def seconds(self, multiply_adds: float, bytes: float) -> float:
        """The floor: what such work takes at least, whichever of the two bounds it."""
        return max(multiply_adds / self.multiply_adds, bytes / self.bytes)

    def record(self) -> dict[str, float]:
        """For the file that keeps the numbers."""
        return {
            "multiply_adds_per_second": round(self.multiply_adds),
            "bytes_per_second": round(self.bytes),
        }


def ceilings(device: str, dtype: torch.dtype) -> Ceilings:
    """Measure both. The operands are random: some GPUs multiply zeros faster."""
    best = 0.0
    for size in (1024, 2048) if device == "cpu" else (4096, 8192):
        a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        seconds = min(timed(lambda a=a, b=b: a @ b, device) for _ in range(8))  # type: ignore[misc]
        best = max(best, size**3 / seconds)
    source = torch.randn(2**25 if device == "cpu" else 2**28, device=device)  # far more than any cache holds
    target = torch.empty_like(source)
    seconds = min(timed(lambda: target.copy_(source), device) for _ in range(8))
    return Ceilings(best, 2 * source.nbytes / seconds)
