"""One optimizer step: the gradient of a whole batch, however it is cut, and in whatever precision; and short floats
that a processor has no arithmetic for, which is said once.
"""

import math
from pathlib import Path

import pytest
import torch
from sampled import crossed
from timm.task import ClassificationTask
from tiny_runs import RunsOutOfMemory, TwoConvs, colours, run, seeded, tiny
from torch import Tensor, nn

from tcnn import convert
from tcnn.config import ConversionConfig
from tcnn.errors import EnvironmentFailure, RequestError
from tcnn.models.precision import emulated
from tcnn.training.distributed import Processes
from tcnn.training.recipe.objective import create_task
from tcnn.training.recipe.optim import create_optimizer
from tcnn.training.runs.resume import latest_point
from tcnn.training.updates.step import MicroBatch, MixedPrecision, Passes, StepLoss, accumulate, halve_chunk, update

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colours(tmp_path_factory.mktemp("colours"))


def attention(dtype: torch.dtype = torch.float64) -> nn.Module:
    """A T-CNN of one layer without batch normalisation, softened so that content has a say."""
    config = ConversionConfig(target="last", temperature=0.5, input_size=(8, 8))
    return convert(seeded(TwoConvs), config).model.to(dtype).train()


def batch(images: int = 12, dtype: torch.dtype = torch.float64) -> MicroBatch:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(images, 3, 8, 8, generator=generator, dtype=dtype), torch.arange(images) % 3


def cut(part: MicroBatch, *sizes: int) -> list[MicroBatch]:
    return list(zip(part[0].split(list(sizes)), part[1].split(list(sizes)), strict=True))


def gradients(
    parts: list[MicroBatch], chunk: int | None, dtype: torch.dtype = torch.float64, **options: object
) -> tuple[dict[str, Tensor], StepLoss]:
    model = attention(dtype)
    config = tiny(**options)
    precision = MixedPrecision(config, CPU)
    if precision.scaler.is_enabled():  # the scale that it begins with is one that overflows here
        precision.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    outcome = accumulate(Passes(create_task(model, config, None, CPU), precision, Processes()), parts, chunk)
    scale = precision.scaler.get_scale() if precision.scaler.is_enabled() else 1.0
    return {name: p.grad / scale for name, p in model.named_parameters() if p.grad is not None}, outcome


@pytest.mark.parametrize(("chunk", "sizes"), crossed([None, 1, 2, 5, 100], [(12,), (6, 6), (8, 4), (1, 2, 9)], 2))
def test_a_batch_in_parts_has_the_gradient_of_the_whole(sizes: tuple[int, ...], chunk: int | None) -> None:
    images, targets = batch()
    model = attention()
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)(model(images), targets)
    loss.backward()
    found, outcome = gradients(cut((images, targets), *sizes), chunk)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-11, atol=1e-12)
    assert float(found["last.gating_param"].abs().sum()) > 1e-9, "λ has a gradient to compare"
    assert outcome.images == 12
    assert outcome.loss == pytest.approx(float(loss.detach()), rel=1e-12)


@pytest.mark.parametrize("amp", ["float16", "bfloat16"])
def test_autocast_and_scaling_leave_the_gradient_about_as_it_is(amp: str) -> None:
    part = batch(dtype=torch.float32)
    exact, _ = gradients([part], None, torch.float32)
    found, outcome = gradients([part], 4, torch.float32, amp=amp)
    same = 0
    for name, gradient in exact.items():
        assert found[name].dtype == torch.float32
        difference = (found[name] - gradient).norm() / gradient.norm().clamp(min=1e-6)
        assert difference < 0.1, name
        same += torch.equal(found[name], gradient)
    assert same < len(exact) / 2, "it was computed otherwise"
    assert outcome.loss == pytest.approx(gradients([part], None, torch.float32)[1].loss, rel=0.02)


def stepped(model: nn.Module, factor: float, clip: float | None, amp: str = "auto") -> tuple[nn.Module, MixedPrecision]:
    """The model after one step of plain SGD at lr 1, its loss multiplied by a factor."""
    config = tiny(opt="momentum", lr=1.0, momentum=0.0, weight_decay=0.0, amp=amp)
    optimizer, precision = create_optimizer(model, config), MixedPrecision(config, CPU)

    class Scaled(ClassificationTask):
        def forward(self, images: Tensor, targets: Tensor) -> dict[str, Tensor]:
            return {"loss": super().forward(images, targets)["loss"] * factor}

    task = Scaled(model, device=CPU, verbose=False)
    accumulate(Passes(task, precision, Processes()), [batch(dtype=torch.float32)], None)
    update(task, optimizer, precision, clip)
    assert all(parameter.grad is None for parameter in model.parameters())
    return model, precision


def moved(before: nn.Module, after: nn.Module) -> float:
    pairs = zip(before.parameters(), after.parameters(), strict=True)
    return math.sqrt(sum(float((a - b).detach().square().sum()) for a, b in pairs))


@pytest.mark.parametrize("amp", ["float32", "float16"])
def test_gradients_are_clipped_to_a_norm_before_scaling(amp: str) -> None:
    start = seeded(TwoConvs)
    assert moved(start, stepped(seeded(TwoConvs), 10.0, None, amp)[0]) > 0.9
    assert moved(start, stepped(seeded(TwoConvs), 10.0, 0.5, amp)[0]) == pytest.approx(0.5, rel=1e-3)
    free, bounded = (moved(start, stepped(seeded(TwoConvs), 1e-3, clip, amp)[0]) for clip in (None, 0.5))
    assert 0 < free == pytest.approx(bounded), "a small one is left alone"


def test_float16_leaves_a_step_out_whose_gradient_overflows() -> None:
    model, precision = stepped(seeded(TwoConvs), 1e34, None, "float16")
    assert moved(seeded(TwoConvs), model) == 0
    assert precision.scaler.get_scale() == 2.0**15, "half of where it began"


def test_the_loss_of_a_step_is_a_mean() -> None:
    assert [StepLoss(3.0, images).loss for images in (1, 2, 0)] == [3.0, 1.5, 3.0]


def test_channels_last_is_placed() -> None:
    images, _ = MixedPrecision(tiny(channels_last=True), CPU).to_device(*batch())
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert MixedPrecision(tiny(), CPU).to_device(*batch())[0].is_contiguous()


def test_the_next_smaller_chunk() -> None:
    parts = cut(batch(), 7, 5)
    error = torch.OutOfMemoryError("no")
    sizes: list[int] = []
    with pytest.raises(EnvironmentFailure, match=r"one image at a time; choose a smaller --size") as caught:
        while True:
            sizes.append(halve_chunk(sizes[-1] if sizes else None, parts, error))
    assert sizes == [4, 2, 1]
    assert caught.value.exit_code == 4


def test_out_of_memory_halves_and_goes_on_with_the_same_gradients(data: Path, tmp_path: Path) -> None:
    """A module that fails above two images of eight learns what one does that never fails."""
    said: list[str] = []
    run(seeded(TwoConvs), data, tmp_path / "whole", opt="sgd", lr=0.1, size=16, epochs=1)
    run(seeded(RunsOutOfMemory), data, tmp_path / "halve_chunk", opt="sgd", lr=0.1, size=16, epochs=1, say=said.append)
    assert [line for line in said if "memory" in line] == [
        "out of memory: going on with 4 images at a time", "out of memory: going on with 2 images at a time",
    ]  # fmt: skip
    whole, halves = (latest_point(tmp_path / name / "resume")[0] for name in ("whole", "halve_chunk"))
    assert whole is not None
    assert halves is not None
    assert (whole.position.chunk, halves.position.chunk) == (None, 2)
    weights = [name for name in whole.tensors if name.startswith("model.")]
    assert len(weights) > 8
    for name in weights:
        torch.testing.assert_close(halves.tensors[name], whole.tensors[name], rtol=1e-4, atol=1e-6)


def test_one_image_too_many(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunsOutOfMemory, "most", 0)
    with pytest.raises(EnvironmentFailure, match="out of memory with one image at a time"):
        run(seeded(RunsOutOfMemory), data, tmp_path / "run", size=16)


def test_one_image_alone_cannot_be_normalised(data: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="batch normalisation cannot learn from one image"):
        run("test_resnet", data, tmp_path / "run", batch_size=1)


@pytest.mark.parametrize("amp", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_a_run_in_half_precision(data: Path, tmp_path: Path, amp: str) -> None:
    result = run(seeded(TwoConvs), data, tmp_path / "run", amp=amp, epochs=1)
    assert result.updates == 3
    assert result.layers == 1
    assert (emulated(amp, torch.device("cpu")) in result.notes) == (emulated(amp, torch.device("cpu")) is not None)


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
