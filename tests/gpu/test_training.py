"""Training on a GPU: its memory, its processes, its copies, and runs that are killed."""

import copy
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from data_pictures import draw_classes
from forked import processes
from safetensors.torch import load_file
from tiny_runs import TwoConvs, colours, seeded, tiny
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import tcnn
from tcnn.config import finetune_config
from tcnn.data.image_set import open_dataset, training_transform
from tcnn.data.loader import TrainingLoader
from tcnn.errors import EnvironmentFailure
from tcnn.models.precision import exact_arithmetic
from tcnn.training.finetune import finetune
from tcnn.training.runs.callbacks import Progress
from tcnn.training.runs.resume import points
from tcnn.training.updates.step import MixedPrecision

pytestmark = pytest.mark.gpu


@pytest.fixture
def process_group(device: torch.device, tmp_path: Path) -> Iterator[str]:
    """NCCL, or Gloo on a CPU, with this process alone."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield backend
    dist.destroy_process_group()


@pytest.mark.parametrize("static_graph", [False, True])
@pytest.mark.parametrize("temperature", [1 / 46, 1.0], ids=["hard", "soft"])
def test_ddp_learns_what_the_model_alone_learns(
    temperature: float, static_graph: bool, device: torch.device, process_group: str
) -> None:
    alone = tcnn.convert(seeded(TwoConvs), target="last", temperature=temperature).model.to(device).train()
    alone.last.set_temperature(temperature, hold=True)
    wrapped = DistributedDataParallel(
        copy.deepcopy(alone), device_ids=[torch.cuda.current_device()] if process_group == "nccl" else None,
        static_graph=static_graph,
    )  # fmt: skip
    x, y = torch.randn(6, 3, 12, 12, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 3
    for model in (alone, wrapped):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            F.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimizer.step()
            optimizer.zero_grad()
    before = dict(seeded(TwoConvs).named_parameters())
    assert not torch.equal(alone.stem.weight.cpu(), before["stem.weight"]), "it has learned"
    for (name, expected), found in zip(alone.named_parameters(), wrapped.module.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.gpu(only="memory is pinned for copies to it")
def test_batches_are_pinned_and_copied_without_waiting(device: torch.device, tmp_path: Path) -> None:
    transform = training_transform(size=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3, scale=(0.5, 1.0), ratio=(0.8, 1.25))
    data = open_dataset(str(colours(tmp_path)))
    loader = TrainingLoader(data, transform, batch_size=8, micro_batch=4, seed=0, workers=1, pin_memory=True)
    before = torch.cuda.get_sync_debug_mode()
    try:
        for number, batch in enumerate(loader.epoch(0)):
            assert batch.images.is_pinned() and batch.targets.is_pinned()
            precision = MixedPrecision(tiny(channels_last=bool(number % 2)), device)
            torch.cuda.set_sync_debug_mode("error")
            images, targets = precision.to_device(batch.images, batch.targets)
            torch.cuda.set_sync_debug_mode("default")
            assert images.device.type == targets.device.type == "cuda"
            assert images.is_contiguous(memory_format=torch.channels_last) is bool(number % 2)
            assert torch.equal(images.cpu(), batch.images) and torch.equal(targets.cpu(), batch.targets)
        assert number > 1
    finally:
        torch.cuda.set_sync_debug_mode(before)
        loader.close()


class Wide(TwoConvs):
    """Its memory is in its images: the first of two convolutions keeps 32 channels of all pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.last = nn.Conv2d(32, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(F.avg_pool2d(self.stem(x).relu(), 16)).mean((2, 3)))


def learn(out: Path, images: Path, limit: int | None, pipe: Connection) -> None:
    """A run in a process that may have so many bytes of the GPU; sends what was said, and the most that it held."""
    if limit:
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    said: list[str] = []
    options = {"size": 128, "epochs": 1, "batch_size": 48, "device": "cuda", "amp": "float32", "opt": "sgd", "lr": 0.1}
    with exact_arithmetic():
        finetune(seeded(Wide), str(images), config=tiny(**options), out=out, say=said.append, pretrained=False)
    pipe.send((said, torch.cuda.max_memory_allocated()))


@pytest.mark.gpu(only="it has an allocator that refuses")
def test_out_of_memory_halves_and_goes_on(device: torch.device, tmp_path: Path) -> None:
    """The allocator itself refuses: with six tenths of what a run needs, another learns the same in halves."""
    images = colours(tmp_path / "colours", images=24)

    def run(name: str, limit: int | None = None) -> tuple[list[str], int]:
        ours, theirs = processes.Pipe(duplex=False)
        process = processes.Process(target=learn, args=(tmp_path / name, images, limit, theirs))
        process.start()
        theirs.close()
        found: tuple[list[str], int] = ours.recv()
        process.join(60)
        assert process.exitcode == 0
        return found

    said, most = run("whole")
    assert not [line for line in said if "out of memory" in line]
    assert most > 200 * 2**20, "images take the memory, not libraries"
    said, less = run("halved", int(0.6 * most))
    halved = [line for line in said if "out of memory" in line]
    assert halved and halved[0] == "out of memory: going on with 24 images at a time"
    assert less < 0.6 * most
    whole, halves = (load_file(tmp_path / name / "last.safetensors") for name in ("whole", "halved"))
    for key, expected in whole.items():
        torch.testing.assert_close(halves[key], expected, rtol=1e-3, atol=1e-5, msg=key)


OPTIONS = {
    "size": 48, "epochs": 2, "batch_size": 8, "micro_batch": 4, "workers": 1, "checkpoint_steps": 2, "mixup": 0.8,
    "cutmix": 1.0, "drop_path": 0.1, "ema": 0.9, "val_split": 0.25,
    "anneal": "warmup", "conversion": {"content_heads": 0},
}  # fmt: skip


def train(out: Path, images: Path, device: str, killed: bool, **options: object) -> None:
    """A run in this process, which dies in its second epoch if it is to."""

    def report(now: Progress) -> None:
        if killed and now.phase == "training" and (now.epoch, now.step) == (2, 2):
            os.kill(os.getpid(), signal.SIGKILL)

    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it cuBLAS may add up in another order
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_num_threads(1)
    config = finetune_config("quick", options=OPTIONS | {"device": device} | options)
    finetune("test_resnet", str(images), config=config, out=out, resume=True, pretrained=False, report=report)


def trained(out: Path, images: Path, device: torch.device, killed: bool = False, **options: object) -> int | None:
    """The exit status of a run in a process of its own."""
    process = processes.Process(target=train, args=(out, images, device.type, killed), kwargs=options)
    process.start()
    process.join(120)
    return process.exitcode


def assert_equal_to_the_last_bit(one: Path, other: Path) -> None:
    for file in ("last.safetensors", "best.safetensors"):
        expected, found = (load_file(out / file) for out in (one, other))
        assert expected.keys() == found.keys()
        assert [key for key, tensor in expected.items() if not tensor.equal(found[key])] == [], file


def test_killed_and_resumed_is_uninterrupted(device: torch.device, tmp_path: Path) -> None:
    """To the last bit, in the bfloat16 that a GPU trains in, once its algorithms are told to be deterministic."""
    images = draw_classes(tmp_path / "data", ["a", "b", "c"], images=14)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert trained(whole, images, device) == 0
    assert trained(killed, images, device, killed=True) == -signal.SIGKILL
    assert points(killed / "resume"), "there is something to resume from"
    assert trained(killed, images, device) == 0
    assert_equal_to_the_last_bit(whole, killed)


@pytest.mark.gpu(only="a CPU captures no graphs")
@pytest.mark.parametrize("anneal", ["warmup", "hold"])
def test_a_graph_learns_what_plain_passes_learn(anneal: str, device: torch.device, tmp_path: Path) -> None:
    """Annealed layers are no convolution from some update on; content heads learn beside taps that stay one.

    In micro-batches, with drop path, mixup and a moving average; killed and resumed, too.
    """
    images = draw_classes(tmp_path / "data", ["a", "b", "c"], images=14)
    options = {"anneal": anneal, "conversion": {"content_heads": 2 if anneal == "hold" else 0}}
    plain, graph = tmp_path / "plain", tmp_path / "graph"
    assert trained(plain, images, device, **options) == 0
    assert trained(graph, images, device, killed=True, **options, cuda_graph=True) == -signal.SIGKILL
    assert trained(graph, images, device, **options, cuda_graph=True) == 0
    assert_equal_to_the_last_bit(plain, graph)


@pytest.mark.gpu(only="a CPU captures no graphs")
def test_a_model_that_waits_for_its_gpu_is_told(device: torch.device, tmp_path: Path) -> None:
    model = Waiting()
    with pytest.raises(EnvironmentFailure, match=r"cuda_graph: this model cannot be captured .*cuda_graph=false"):
        config = tiny(size=32, epochs=1, device="cuda", cuda_graph=True, convert=False)
        finetune(model, str(colours(tmp_path)), config=config, out=tmp_path / "run")


class Waiting(TwoConvs):
    """It looks at its values."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)
        return y if y.abs().max().item() > 0 else -y
