"""The loss: against its formulas in float64, and mixup that does not notice how a batch is split."""

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import timm
import torch
from timm.task import LogitDistillationTask
from tiny_runs import TwoConvs, seeded, tiny
from torch import Tensor, nn

from tcnn.errors import RequestError
from tcnn.training.recipe.objective import NeighbourMixup, check_teacher, create_task, uses_mixup

CPU = torch.device("cpu")
KINDS = {"mixup": {"mixup": 0.8}, "cutmix": {"cutmix": 1.0}, "both": {"mixup": 0.8, "cutmix": 1.0}}


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


class Known(TwoConvs):
    """With the mean and deviation that distillation asks a model for."""

    pretrained_cfg: ClassVar = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
    num_classes, in_chans = 3, 3


class Other(Known):
    pretrained_cfg: ClassVar = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.5, 0.5)}


def batch(images: int = 6, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(images, 3, 8, 8, generator=generator), torch.arange(images) % 3


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def log_softmax(logits: Tensor) -> Tensor:
    return logits - logits.exp().sum(1, keepdim=True).log()


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Targets (B, classes), distributions."""
    return -(targets * log_softmax(logits)).sum(1).mean()


def smooth(targets: Tensor, smoothing: float) -> Tensor:
    """1 − ε + ε/C for the class and ε/C for each other one (Szegedy et al. 2016)."""
    return torch.eye(3)[targets] * (1 - smoothing) + smoothing / 3


def assert_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_classification(smoothing: float) -> None:
    model = seeded(Known)
    images, targets = batch()
    loss = create_task(model, tiny(smoothing=smoothing), None, CPU)(images, targets)["loss"]
    expected = cross_entropy(model(images), smooth(targets, smoothing))
    assert_equal([loss, *gradients(model, loss)], [expected, *gradients(model, expected)])


def renormalised(images: Tensor) -> Tensor:
    """From the student's mean and deviation to the teacher's."""
    mean, std = (torch.tensor(Known.pretrained_cfg[key])[:, None, None] for key in ("mean", "std"))
    other_mean, other_std = (torch.tensor(Other.pretrained_cfg[key])[:, None, None] for key in ("mean", "std"))
    return (images * std + mean - other_mean) / other_std


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_hard_distillation_is_deits_equation_3(weight: float) -> None:
    student, teacher = seeded(Known), seeded(Other, 1).eval()
    images, targets = batch()
    config = tiny(teacher="source", distillation="hard", distillation_weight=weight, smoothing=0.1)
    task = create_task(student, config, teacher, CPU)
    loss = task(images, targets)["loss"]
    decided = teacher(renormalised(images)).argmax(1)
    assert not torch.equal(decided, targets)
    logits = student(images)
    expected = (1 - weight) * cross_entropy(logits, smooth(targets, 0.1)) + weight * cross_entropy(
        logits, torch.eye(3)[decided]
    )
    assert_equal([loss, *gradients(student, loss)], [expected, *gradients(student, expected)])
    assert all(parameter.grad is None for parameter in teacher.parameters())


@pytest.mark.parametrize("heat", [1.0, 3.0])
def test_soft_distillation_is_the_divergence(heat: float) -> None:
    """(1 − w)·CE + w·T²·KL(teacher ‖ student), both softened by T (Hinton et al. 2015)."""
    student, teacher = seeded(Known), seeded(Other, 1).eval()
    images, targets = batch()
    config = tiny(teacher="source", distillation_weight=0.3, distillation_temperature=heat, smoothing=0.0)
    task = create_task(student, config, teacher, CPU)
    assert type(task) is LogitDistillationTask
    loss = task(images, targets)["loss"]
    logits = student(images)
    q = log_softmax(teacher(renormalised(images)).detach() / heat)
    divergence = (q.exp() * (q - log_softmax(logits / heat))).sum(1).mean() * heat**2
    expected = 0.7 * cross_entropy(logits, smooth(targets, 0.0)) + 0.3 * divergence
    assert_equal([loss, *gradients(student, loss)], [expected, *gradients(student, expected)])


def test_the_teacher_stays_in_evaluation_mode() -> None:
    teacher = timm.create_model("test_resnet", num_classes=3)
    task = create_task(timm.create_model("test_resnet", num_classes=3), tiny(distillation="hard"), teacher, CPU)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    task.train()
    task(torch.randn(2, 3, 32, 32), torch.tensor([0, 1]))["loss"].backward()
    assert task.trainable_module.training
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())


def test_a_teacher_must_fit() -> None:
    with pytest.raises(RequestError, match=r"expected 3 classes.* found 1000"):
        check_teacher(timm.create_model("test_resnet"), Known(), ["ant", "bee", "cat"])
    with pytest.raises(RequestError, match="TwoConvs has no pretrained_cfg"):
        check_teacher(Known(), TwoConvs(), ["ant", "bee", "cat"])
    check_teacher(Known(), Known(), ["ant", "bee", "cat"])


def test_a_teachers_classes_are_those_of_its_output() -> None:
    """One whose classifier was replaced by hand says the number of the old one: refused, or ended in its first step."""
    teacher = timm.create_model("test_resnet")
    teacher.fc = nn.Linear(teacher.num_features, 3)
    check_teacher(teacher, Known(), ["ant", "bee", "cat"])
    teacher = timm.create_model("test_resnet", num_classes=3)
    teacher.fc = nn.Linear(teacher.num_features, 4)
    with pytest.raises(RequestError, match=r"expected 3 classes.* found 4"):
        check_teacher(teacher, Known(), ["ant", "bee", "cat"])


def test_a_teacher_must_have_the_classes_in_their_order() -> None:
    class Named(Known):
        pretrained_cfg: ClassVar = {**Known.pretrained_cfg, "label_names": ["ant", "bee", "cat"]}

    check_teacher(Named(), Known(), ["ant", "bee", "cat"])
    check_teacher(Named(), Known(), ["n01", "n02", "n03"])
    with pytest.raises(RequestError, match=r"^teacher: its class 1 is 'bee', which is class 0 of the data set; choose"):
        check_teacher(Named(), Known(), ("bee", "cat", "ant"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1, 5, 2**63])
def test_a_batch_mixed_in_parts_is_mixed_as_a_whole(kind: str, seed: int) -> None:
    config = tiny(**KINDS[kind], smoothing=0.1)
    mixup = NeighbourMixup(config, 3)
    images, targets = batch(12)
    images = images.float()
    whole = mixup(images.clone(), targets, seed)
    for cut in (2, 6, 10):
        parts = [mixup(images[part].clone(), targets[part], seed) for part in (slice(cut), slice(cut, None))]
        for place in (0, 1):
            assert torch.equal(torch.cat([part[place] for part in parts]), whole[place])


@pytest.mark.parametrize("seed", range(8))
def test_partners_are_neighbours(seed: int) -> None:
    """Mixed image = λ·own + (1 − λ)·neighbour's, with the λ that the targets tell."""
    mixup = NeighbourMixup(tiny(mixup=0.8, smoothing=0.0), 3)
    images, _ = batch(6)
    targets = torch.tensor([0, 1, 1, 2, 2, 0])
    mixed, labels = mixup(images.clone(), targets, seed)
    neighbour = torch.tensor([1, 0, 3, 2, 5, 4])
    share = labels[torch.arange(6), targets]
    assert torch.allclose(share, share[0].expand(6))
    expected_labels = share[0] * torch.eye(3)[targets] + (1 - share[0]) * torch.eye(3)[targets[neighbour]]
    torch.testing.assert_close(labels, expected_labels, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(mixed, share[0] * images + (1 - share[0]) * images[neighbour], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_cutmix_pastes_a_box_of_the_neighbour(seed: int) -> None:
    mixup = NeighbourMixup(tiny(cutmix=1.0, smoothing=0.0), 3)
    images, _ = batch(4)
    targets = torch.tensor([0, 1, 2, 0])
    mixed, labels = mixup(images.clone(), targets, seed)
    other = images[[1, 0, 3, 2]]
    pasted = (mixed == other).all(1)
    assert torch.equal(mixed, torch.where(pasted[:, None], other, images))
    assert torch.equal(pasted, pasted[:1].expand_as(pasted)), "one box a batch"
    share = 1 - pasted[0].double().mean()
    torch.testing.assert_close(labels[torch.arange(4), targets], share.expand(4), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_targets_are_distributions_and_seeds_differ(kind: str) -> None:
    mixup = NeighbourMixup(tiny(**KINDS[kind], smoothing=0.1), 3)
    images, targets = batch(6)
    seen: list[Any] = [mixup(images.clone(), targets, seed) for seed in range(6)]
    for _, labels in seen:
        torch.testing.assert_close(labels.sum(1), torch.ones(6), rtol=1e-6, atol=1e-6)
        assert (labels > 0).all()
    assert len({tuple(mixed.flatten().tolist()) for mixed, _ in seen}) > 1


def test_numpys_generator_is_left_as_it_was() -> None:
    np.random.seed(3)
    expected = np.random.rand(4)
    np.random.seed(3)
    images, targets = batch(4)
    NeighbourMixup(tiny(mixup=0.8), 3)(images, targets, 7)
    assert np.array_equal(np.random.rand(4), expected)


def test_mixed_targets_meet_a_loss_that_takes_them() -> None:
    config = tiny(mixup=0.8, smoothing=0.1)
    assert uses_mixup(config)
    assert not uses_mixup(tiny())
    model = seeded(Known)
    images, targets = NeighbourMixup(config, 3)(*batch(), 5)
    loss = create_task(model, config, None, CPU)(images, targets)["loss"]
    torch.testing.assert_close(loss, cross_entropy(model(images), targets), rtol=1e-12, atol=1e-14)
