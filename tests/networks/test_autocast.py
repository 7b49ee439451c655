"""Short floats that a processor has no arithmetic for: said once, wherever `amp` is chosen."""

from pathlib import Path

import pytest
import torch

from tcnn.models.precision import emulated

CPU = torch.device("cpu")
FLAGS = Path("/proc/cpuinfo")


def flags() -> set[str]:
    """What an x86 processor can do, as Linux tells it."""
    lines = FLAGS.read_text().splitlines() if FLAGS.is_file() else []
    return set(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())


@pytest.mark.skipif("sse2" not in flags(), reason="NOT TESTED: neither Linux nor an x86 processor")
def test_it_says_what_the_processor_says() -> None:
    """oneDNN asks for parts of AVX-512 for bfloat16, for its float16 or AMX for float16, or for AVX2's for both."""
    both = "avx_ne_convert" in flags()  # AVX2's VNNI 2, as Linux names it
    bf16 = both or {"avx512bw", "avx512vl", "avx512dq"} <= flags()
    fp16 = both or bool({"avx512_fp16", "amx_fp16"} & flags())
    assert (emulated("bfloat16", CPU) is None) == bf16
    assert (emulated("float16", CPU) is None) == fp16
    assert emulated("float32", CPU) is None and emulated("auto", CPU) is None
    assert emulated("bfloat16", torch.device("cuda")) is None
