"""Layer-wise matching: against its formula in float64, in every way a batch can be taken, and gone after annealing."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from sampled import sampled
from tiny_runs import TwoConvs, colours, run, seeded, tiny
from torch import Tensor, nn

import tcnn
from tcnn.errors import CheckpointError, RequestError
from tcnn.models.running import gpsa_layers
from tcnn.training.distributed import Processes
from tcnn.training.recipe.matching import Matching, mismatch
from tcnn.training.recipe.objective import create_task
from tcnn.training.runs.rundir import RunDirectory
from tcnn.training.updates.step import MixedPrecision, Passes, accumulate

CPU = torch.device("cpu")


class Net(nn.Module):
    """Strided, dilated, grouped and unevenly padded convolutions in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleList([
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 12, (3, 5), stride=(2, 1), padding=(1, 2)),
            nn.Conv2d(12, 8, 3, padding=2, dilation=2, groups=4, padding_mode="reflect"), nn.Conv2d(8, 8, 2),
        ])  # fmt: skip
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body:
            x = torch.tanh(layer(x))
        return self.head(x.mean((2, 3)))


def pair(content_heads: int = 0) -> tuple[nn.Module, nn.Module]:
    """A network, and its T-CNN at τ = 0.6, in float64."""
    source = seeded(Net).double()
    config: dict[str, Any] = {"target": r"body\.\d", "input_size": (11, 9), "content_heads": content_heads}
    return source, tcnn.convert(source, temperature=0.6, **config).model.train()


def batch(images: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(images, 3, 11, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), torch.arange(
        images
    ) % 3


def expected_loss(source: nn.Module, model: nn.Module, images: Tensor, targets: Tensor, weight: float) -> Tensor:
    """Cross-entropy plus weight · mean over layers and images of ‖y − s‖²/‖s − s̄‖², s of the source's convolution."""
    terms = []
    x = images
    for conv, layer in zip(source.body, model.body, strict=True):
        wanted, y = conv(x).detach(), layer(x)
        centred = wanted - wanted.mean((1, 2, 3), keepdim=True)
        terms += [(y - wanted).square().sum((1, 2, 3)) / centred.square().sum((1, 2, 3))]
        x = torch.tanh(y)
    loss = nn.functional.cross_entropy(model.head(x.mean((2, 3))), targets)
    return loss + weight * torch.stack(terms).mean()


@pytest.mark.parametrize(
    ("chunk", "content_heads"), sampled([(None, 0), (2, 0), (1, 0), (None, 2)], [(2, 0), (None, 2)])
)
def test_loss_and_gradients(chunk: int | None, content_heads: int) -> None:
    source, model = pair(content_heads)
    images, targets = batch()
    loss = expected_loss(source, model, images, targets, 0.7)
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    config = tiny(smoothing=0.0)
    task = create_task(model, config, None, CPU)
    Matching(task, gpsa_layers(model), 0.7)
    outcome = accumulate(Passes(task, MixedPrecision(config, CPU), Processes()), [(images, targets)], chunk)
    assert outcome.loss == pytest.approx(loss.item(), rel=1e-6), "mean squared errors are of float32"
    for (name, parameter), expected in zip(model.named_parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-7, msg=name)


def test_nothing_is_left_after_it_is_closed() -> None:
    _, model = pair()
    images, targets = batch()
    task = create_task(model, tiny(), None, CPU)
    plain = task(images, targets)["loss"]
    matching = Matching(task, gpsa_layers(model), 1.0)
    assert task(images, targets)["loss"].item() > plain.item()
    matching.close()
    assert task(images, targets)["loss"].equal(plain)
    assert not any(layer._forward_hooks for layer in gpsa_layers(model).values())


def test_a_convolution_matches_itself() -> None:
    _, model = pair()
    for layer in gpsa_layers(model).values():
        layer.set_temperature(1 / 46)
    images, targets = batch()
    task = create_task(model, tiny(), None, CPU)
    plain = task(images, targets)["loss"].item()
    Matching(task, gpsa_layers(model), 1e3)
    assert task(images, targets)["loss"].item() == pytest.approx(plain, rel=1e-6)


def test_what_is_matched_is_not_what_is_learned() -> None:
    """Another W_val at the start is part of it; what changes later is not."""
    source, model = pair()
    layer = model.body[1]
    with torch.no_grad():
        mixed = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64)).Q
        layer.value.copy_(mixed)
        source.body[1].weight.copy_(torch.einsum("oikl,ij->ojkl", source.body[1].weight, mixed))
    images, targets = batch()
    task = create_task(model, tiny(smoothing=0.0), None, CPU)
    matching = Matching(task, gpsa_layers(model), 1.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    loss = expected_loss(source, model, images, targets, 1.0)
    assert task(images, targets)["loss"].item() == pytest.approx(loss.item(), rel=1e-6)
    _, other = pair()
    again = create_task(other, tiny(smoothing=0.0), None, CPU)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_()
    taken = Matching(again, gpsa_layers(other), 1.0)
    taken.load(matching.state)
    other.load_state_dict(model.state_dict())
    assert again(images, targets)["loss"].equal(task(images, targets)["loss"])
    with pytest.raises(CheckpointError, match="does not hold the convolutions"):
        taken.load({})


def test_an_even_map_divides_by_no_zero() -> None:
    even = torch.ones(2, 3, 4, 4)
    assert float(mismatch(even, even)) == 0
    assert torch.isfinite(mismatch(even + 1e-4, even))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colours(tmp_path_factory.mktemp("colours"))


@pytest.mark.parametrize(
    "options",
    [
        {"convert_at": 1},
        pytest.param({"micro_batch": 2}, marks=pytest.mark.slow),
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"amp": "float16"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_runs(data: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    """The loss is larger while τ rises, and what it was afterwards for want of layers that are matched."""
    losses = []
    for matching in (0.0, 100.0):
        out = tmp_path / str(matching)
        result = run(seeded(TwoConvs), data, out, matching=matching, epochs=3, log_steps=1, **options)
        assert result.updates == 9
        losses.append([row["loss"] for row in RunDirectory(out).rows("train")])
    late = 3 if "convert_at" in options else 0
    plain, matched = losses
    assert plain[:late] == matched[:late]
    assert matched[late + 2] > plain[late + 2] + 1
    assert matched[-1] < plain[-1] + 1


def test_a_t_cnn_that_is_annealed_already(data: Path, tmp_path: Path) -> None:
    done = tmp_path / "t.safetensors"
    tcnn.save(tcnn.convert(timm.create_model("test_resnet", num_classes=3), temperature=1.0).model, done)
    with pytest.raises(RequestError, match="matching: there is no annealing, as τ is at its end already"):
        run(done, data, tmp_path / "second", matching=1.0)
    assert not (tmp_path / "second").exists()
