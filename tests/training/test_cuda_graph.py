"""What is asked of CUDA graphs where none can be captured; what they compute is tested on a GPU, in tests/gpu."""

from pathlib import Path

import pytest
import torch
from tiny_runs import TwoConvs, colours, tiny

import tcnn
from tcnn.errors import RequestError
from tcnn.training.updates.cuda_graph import check_graph


def test_without_a_gpu_it_says_so_before_anything_is_written(tmp_path: Path) -> None:
    config = tiny(cuda_graph=True)
    with pytest.raises(RequestError, match=r"^cuda_graph: expected a GPU, found device cpu; leave it out$"):
        tcnn.finetune(TwoConvs(), str(colours(tmp_path / "data")), config=config, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_several_processes_are_refused() -> None:
    check_graph(torch.device("cuda"), 1)
    with pytest.raises(RequestError, match=r"^cuda_graph: expected one process, found 2; leave it out$"):
        check_graph(torch.device("cuda"), 2)


@pytest.mark.parametrize(
    ("options", "other"),
    [
        ({"compile": True}, "compile"),
        ({"amp": "float16"}, "amp=float16"),
        ({"matching": 0.5, "anneal": "warmup"}, "matching"),
    ],
    ids=str,
)
def test_it_is_not_combined_with_what_it_cannot_hold(options: dict[str, object], other: str) -> None:
    with pytest.raises(RequestError, match=f"cuda_graph: cannot be combined with {other}; choose one of them"):
        tiny(cuda_graph=True, **options)
