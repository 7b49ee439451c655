"""`tcnn.anneal` in loops with parts of models, several forward passes a step or checkpoints: one τ a step."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from timm.task import FeatureDistillationTask
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import tcnn
from tcnn.conversion.annealing import Annealing, release, temperature
from tcnn.errors import RequestError

START = 1 / 46
COUNT = 6


def backbone(count: int = COUNT) -> nn.Module:
    torch.manual_seed(0)
    cnn = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )  # fmt: skip
    model = tcnn.convert(cnn.double(), input_size=8).model.train()
    tcnn.anneal(model, count)
    return model


def tau(model: nn.Module) -> float:
    (layer,) = (module for module in model.modules() if isinstance(module, tcnn.GPSA2d))
    return float(layer.position_temperature)


def images() -> Tensor:
    return torch.randn(2, 3, 8, 8, dtype=torch.float64)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def of_a_fixed_tau(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> dict[str, Tensor]:
    """The gradients of a loss at the model's current τ, without annealing or checkpoints."""
    twin = copy.deepcopy(model)
    release(twin)
    twin.zero_grad()
    loss(twin).backward()
    return gradients(twin)


def rising(steps: int) -> Any:
    return pytest.approx([temperature(min(n, COUNT - 1), START, COUNT) for n in range(steps)], rel=1e-6)


LOSSES: dict[str, Callable[[nn.Module, Tensor, Tensor], Tensor]] = {
    "two views": lambda model, a, b: (model(a) - model(b)).square().sum(),
    "summed losses": lambda model, a, b: model(a).square().sum() + model(b).sin().sum(),
    "one of two": lambda model, a, b: [model(a), model(b)][1].square().sum(),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_passes_that_share_a_backward_pass_are_one_step_at_one_tau(kind: str) -> None:
    model, found = backbone(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(COUNT + 2):
        a, b = images(), images()
        LOSSES[kind](model, a, b).backward()
        found.append(tau(model))
        expected = of_a_fixed_tau(model, lambda twin, a=a, b=b: LOSSES[kind](twin, a, b))  # type: ignore[misc]
        torch.testing.assert_close({n: p.grad for n, p in model.named_parameters() if p.grad is not None}, expected)
        optimizer.step()
        optimizer.zero_grad()
    assert found == rising(COUNT + 2)


@pytest.mark.parametrize("way", ["reentrant", "not reentrant", "to the end"])
@pytest.mark.parametrize("views", [1, 2])
def test_a_checkpoint_computes_the_same_function_again_and_counts_once(way: str, views: int) -> None:
    model, found = backbone(), []
    for _ in range(COUNT + 2):
        given = [images().requires_grad_() for _ in range(views)]
        with set_checkpoint_early_stop(way != "to the end"):
            outputs = [checkpoint(model, one, use_reentrant=way == "reentrant") for one in given]
            seen = tau(model)
            torch.stack(outputs).prod(0).sum().backward()
        assert tau(model) == seen
        found.append(seen)
        expected = of_a_fixed_tau(model, lambda twin: torch.stack([twin(one) for one in given]).prod(0).sum())  # noqa: B023
        torch.testing.assert_close(gradients(model), expected)
    if way == "reentrant":  # its first pass has no gradients, so that a step is known for one when it is over
        assert found[0] == pytest.approx(START)
        assert found[1:] == rising(COUNT + 1)
    else:
        assert found == rising(COUNT + 2)


def test_tau_may_rise_while_a_graph_is_kept() -> None:
    """A second backward pass through a kept graph is of the τ of its forward pass, though the next step has begun."""
    model = backbone(3)
    model(images()).sum().backward()
    x = images()
    kept = model(x)
    expected, before = of_a_fixed_tau(model, lambda twin: twin(x).square().sum()), tau(model)
    kept.sum().backward(retain_graph=True)
    model(images()).sum().backward()
    assert tau(model) > before
    model.zero_grad()
    kept.square().sum().backward()
    torch.testing.assert_close(gradients(model), expected)


def test_a_graph_that_is_thrown_away_is_not_waited_for() -> None:
    model, found = backbone(), []
    for _ in range(COUNT):
        model(images())
        found.append(tau(model))
    assert found == rising(COUNT)


def test_an_output_that_no_loss_uses_does_not_stop_it() -> None:
    """The loss is of what a hook has seen, and the output lives on until the next replaces it."""
    model, found, seen = backbone(), [], []
    model[2].register_forward_hook(lambda module, args, output: seen.append(output))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(COUNT):
        unused = model(images())
        seen.pop().square().mean().backward()
        optimizer.step()
        found.append(tau(model))
    assert unused is not None
    assert found == rising(COUNT)


def test_evaluation_in_training_mode_is_no_step() -> None:
    model, found = backbone(), []
    for _ in range(COUNT):
        model(images()).sum().backward()
        found.append(tau(model))
        with torch.no_grad():
            model(images().requires_grad_())
    assert found == rising(COUNT)


def test_a_copy_made_within_a_step_waits_for_nothing() -> None:
    model = backbone()
    output = model(images())
    twin = copy.deepcopy(model)
    twin(images()).sum().backward()
    assert tau(twin) > tau(model)
    output.sum().backward()


def deep(count: int = COUNT) -> nn.Module:
    """Three GPSA layers, the last of which is called twice."""
    torch.manual_seed(0)
    last = nn.Conv2d(4, 4, 3, padding=1)
    cnn = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), last, nn.ReLU(), last).double()
    model = tcnn.convert(cnn, input_size=8, target=".*").model.train()
    tcnn.anneal(model, count)
    return model


def taus(model: nn.Module) -> set[float]:
    return {float(module.gate_temperature) for module in model.modules() if isinstance(module, tcnn.GPSA2d)}


WAYS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "forward": lambda model, x: model.forward(x),
    "its children": lambda model, x: nn.Sequential(*model.children())(x),
    "the first of them in a checkpoint": lambda model, x: model[1:](  # type: ignore[index]
        checkpoint(model[0], x, use_reentrant=False)  # type: ignore[index]
    ),
    "the last of them in one, which begins without gradients": lambda model, x: checkpoint(
        model[1:], model[0](x), use_reentrant=True,  # type: ignore[index]
    ),
    "two views": lambda model, x: model.forward(x) * model.forward(x.flip(-1)),
    "a view by its call": lambda model, x: model(x) * model.forward(x.flip(-1)),
    "a copy": lambda model, x: copy.deepcopy(model).forward(x) + model.forward(x),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_step_begins_with_the_first_layer_where_the_model_is_not_called(way: str) -> None:
    model, found = deep(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(COUNT + 1):
        WAYS[way](model, images()).square().sum().backward()
        (tau,) = taus(model)
        found.append(tau)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model.forward(images())
    assert found == rising(COUNT + 1)


def test_a_call_of_the_model_without_a_backward_pass_hides_no_later_steps() -> None:
    """As a summary of the model makes one before the loop; it counts, as ever."""
    model, found = deep(), []
    model(images())
    for _ in range(COUNT):
        model.forward(images()).sum().backward()
        found.append(max(taus(model)))
    assert found == pytest.approx([temperature(min(n + 1, COUNT - 1), START, COUNT) for n in range(COUNT)], rel=1e-6)


def test_layers_that_are_frozen_begin_no_step() -> None:
    model, found = deep(), []
    model[0].requires_grad_(False)  # type: ignore[index, operator]
    for _ in range(COUNT):
        (model.forward(images()) + model.forward(images())).square().sum().backward()
        (tau,) = taus(model)
        found.append(tau)
    assert found == rising(COUNT)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_the_parts_of_a_copy_count_on(copied: Callable[[nn.Module], nn.Module]) -> None:
    model = deep()
    for _ in range(2):
        model.forward(images()).sum().backward()
    twin = copied(model)
    twin.forward(images()).sum().backward()
    assert [*taus(model), *taus(twin)] == pytest.approx([temperature(n, START, COUNT) for n in (1, 2)], rel=1e-6)


def test_feature_distillation_of_timm() -> None:
    student = timm.create_model("t_test_resnet", num_classes=4, anneal_steps=COUNT)
    teacher = timm.create_model("test_resnet", num_classes=4)
    task = FeatureDistillationTask(student, teacher, criterion=nn.CrossEntropyLoss(), verbose=False).train()
    found = []
    for _ in range(2):
        task(torch.randn(2, 3, 32, 32), torch.arange(2))["loss"].backward()
        found.append(max(taus(student)))
    assert found == rising(2)


@pytest.mark.parametrize("steps", [np.int64(10), np.int32(10)])
def test_numbers_of_numpy_are_numbers(steps: Any) -> None:
    model = backbone()
    tcnn.anneal(model, steps, end=np.float32(0.5))  # type: ignore[arg-type]
    (hook,) = (hook for hook in model._forward_pre_hooks.values() if isinstance(hook, Annealing))
    assert (hook.steps, hook.end) == (10, 0.5)
    with pytest.raises(RequestError, match="anneal: expected a number of training steps"):
        tcnn.anneal(model, np.float64(10))  # type: ignore[arg-type]


@pytest.mark.slow
def test_lightning_resumes_in_the_middle(tmp_path: Path) -> None:
    """A run of three epochs that is resumed after the first has each τ, and in the end each weight, of one without end.

    Lightning loads the weights before it asks for the optimizer, where `anneal` is called.
    """
    lightning: Any = pytest.importorskip("lightning")
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(3, 8, 8, dtype=torch.float64, generator=generator), number % 8) for number in range(8)]

    class Training(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.taus: list[float] = []
            self.model = backbone()

        def training_step(self, batch: Any, index: int) -> Tensor:
            loss = F.cross_entropy(self.model(batch[0]), batch[1])
            self.taus.append(tau(self.model))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            tcnn.anneal(self.model, self.trainer.estimated_stepping_batches // 2)
            return torch.optim.AdamW(tcnn.parameter_groups(self.model, lr=1e-3))

        def on_train_epoch_end(self) -> None:
            self.trainer.save_checkpoint(tmp_path / f"{self.current_epoch}.ckpt")

    def fit(resumed: Path | None = None) -> Any:
        training = Training()
        trainer = lightning.Trainer(
            max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(training, torch.utils.data.DataLoader(data, 2), ckpt_path=resumed)  # type: ignore[arg-type]
        return training

    whole = fit()
    resumed = fit(tmp_path / "0.ckpt")
    assert resumed.taus == whole.taus[4:] and whole.taus[3] < whole.taus[4] < whole.taus[5] == 1
    for name, tensor in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], tensor), name
