"""Statistics of batch normalisation that are taken anew are plain means over batches, in a run and its resumption."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file
from tiny_runs import TwoConvs, colours, run, seeded
from torch import Tensor, nn
from torch.nn import functional as F

from tcnn.data.loader import TrainingLoader
from tcnn.training.recipe.annealing import batch_norms, reestimate_batch_norm
from tcnn.training.updates import loop


class Normalised(nn.Module):
    """A convolution, batch normalisation, and dropout before another one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.first, self.second = nn.BatchNorm2d(4, momentum=0.3), nn.BatchNorm2d(4)
        self.free = nn.BatchNorm2d(4, track_running_stats=False)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.free(self.second(self.drop(self.first(self.conv(x)))))


@pytest.mark.parametrize("training", [True, False])
def test_they_are_means_over_batches(training: bool) -> None:
    torch.manual_seed(0)
    model = Normalised().double().train(training)
    model.first.eval()
    modes = [module.training for module in model.modules()]
    batches = [torch.randn(n, 3, 7, 6, dtype=torch.float64) for n in (4, 2, 5)]
    model(batches[0])
    generator = torch.get_rng_state()
    reestimate_batch_norm(model, iter(batches))
    assert torch.equal(torch.get_rng_state(), generator), "nothing is random"
    assert [module.training for module in model.modules()] == modes
    assert (model.first.momentum, model.second.momentum) == (0.3, 0.1)
    assert batch_norms(model) == [model.first, model.second]
    maps = [model.conv(batch) for batch in batches]
    inner = [F.batch_norm(m, None, None, model.first.weight, model.first.bias, training=True) for m in maps]
    for norm, seen in ((model.first, maps), (model.second, inner)):
        for found, statistic in ((norm.running_mean, torch.mean), (norm.running_var, torch.var)):
            expected = torch.stack([statistic(m, (0, 2, 3)) for m in seen]).mean(0)
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_timms_layers_are_found() -> None:
    model = timm.create_model("test_byobnet", num_classes=3).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert batch_norms(model)
    reestimate_batch_norm(model, [torch.randn(2, 3, 64, 64)])
    changed = {name for name, tensor in model.state_dict().items() if not tensor.equal(before[name])}
    assert changed
    assert all("running" in name or "num_batches" in name for name in changed)


def test_a_module_without_any_is_left_alone() -> None:
    model = TwoConvs()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    reestimate_batch_norm(model, [torch.randn(2, 3, 8, 8)])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


class Counted(TwoConvs):
    """Batch normalisation before the layer that is converted."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.norm(self.stem(x)).relu()).mean((2, 3)))


@pytest.mark.parametrize("micro", [8, pytest.param(4, marks=pytest.mark.slow)])
def test_a_run_takes_them_over_the_first_batches_of_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, micro: int
) -> None:
    """Once annealing is over, with what is measured in the end: the moving average where there is one."""
    given: list[tuple[nn.Module, list[Tensor]]] = []

    def noted(model: nn.Module, batches: Any, but: Any = ()) -> None:
        given.append((model, list(batches)))
        reestimate_batch_norm(model, given[-1][1], but)

    monkeypatch.setattr(loop, "reestimate_batch_norm", noted)
    seen: list[Tensor] = []
    epoch: Callable[..., Any] = TrainingLoader.epoch

    def watched(self: TrainingLoader, number: int, start_step: int = 0) -> Any:
        for batch in epoch(self, number, start_step):
            seen.append(batch.images)
            yield batch

    monkeypatch.setattr(TrainingLoader, "epoch", watched)
    data, options = colours(tmp_path / "data"), {"epochs": 3, "anneal_epochs": 1.5, "ema": 0.9, "micro_batch": micro}
    result = run(seeded(Counted), data, tmp_path / "run", bn_reestimate=2, **options)
    assert len(given) == 2, "not after the first epoch, in which τ was on its way"
    per_epoch, count = 3 * (8 // micro), 2 * (8 // micro)
    for number, (_, batches) in enumerate(given):
        start = per_epoch + number * (per_epoch + count)
        assert len(batches) == count
        assert all(torch.equal(a, b) for a, b in zip(batches, seen[start : start + count], strict=True))
    plain = run(seeded(Counted), data, tmp_path / "plain", **options)
    other, own = (load_file(path.last) for path in (plain, result))
    assert int(own["norm.num_batches_tracked"]) == count
    assert {name for name, tensor in own.items() if not tensor.equal(other[name])} == {
        name for name in own if "running" in name or "num_batches" in name
    }, "what is learned is the same"
