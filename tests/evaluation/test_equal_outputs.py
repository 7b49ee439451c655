"""Which class a model answers: one rule for counts, single images and predictions, also where outputs are equal."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tcnn
from tcnn.data.image_set import ImageSet, open_dataset
from tcnn.evaluation.evaluate import evaluate
from tcnn.evaluation.outcomes import outcomes
from tcnn.evaluation.outputs import answers, first, ranks


class Coarse(nn.Module):
    """A network whose outputs are rounded, so that many are equal."""

    def __init__(self, model: nn.Module, classes: int) -> None:
        super().__init__()
        self.model, self.head = model, nn.Linear(7, classes)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.model(x)).mul(2).round()
        return found


def sorted_by_hand(row: list[float]) -> list[int]:
    return sorted(range(len(row)), key=lambda one: (-row[one], one))


@pytest.mark.parametrize("classes", [1, 2, 10, 1000])
@pytest.mark.parametrize("levels", [1, 3, 1_000_000])
def test_the_lower_number_is_first_where_outputs_are_equal(classes: int, levels: int) -> None:
    generator = torch.Generator().manual_seed(classes + levels)
    logits = torch.randint(levels, (32, classes), generator=generator).float()
    targets = torch.randint(classes, (32,), generator=generator)
    orders = [sorted_by_hand(row) for row in logits.tolist()]
    assert answers(logits).tolist() == [order[0] for order in orders]
    assert ranks(logits, targets).tolist() == [
        order.index(target) for order, target in zip(orders, targets.tolist(), strict=True)
    ]
    shares, places = first(logits, 5)
    assert places.tolist() == [order[:5] for order in orders]
    assert torch.equal(shares, logits.softmax(1).gather(1, places))


def test_classes_that_a_softmax_cannot_tell_apart_are_told_apart() -> None:
    logits = torch.tensor([[0.0, 1e-9, -3.0]])
    assert len(set(logits.softmax(1)[0].tolist())) == 2, "the probabilities of the first two are equal"
    assert answers(logits).tolist() == [1] and first(logits, 2)[1].tolist() == [[1, 0]]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_outputs_that_are_no_numbers_answer_nothing(value: float) -> None:
    logits = torch.tensor([[0.0, value, 1.0], [0.0, 2.0, 1.0]])
    assert answers(logits).tolist() == [-1, 1]
    assert ranks(logits, torch.tensor([2, 1])).tolist() == [-1, 0]


def test_counts_and_single_images_agree(data: ImageSet, lively: Callable[..., nn.Module]) -> None:
    """Every number of one result is of the same answers."""
    torch.manual_seed(3)
    model = Coarse(lively(num_classes=7), 7).eval()
    every = outcomes(model, data, size=32)
    assert len(set(every.predicted.tolist())) > 1
    found = evaluate(model, data, size=32)
    assert found.right == int(every.right.sum())
    for number, score in enumerate(found.per_class.values()):
        assert score.right == int(every.right[every.targets == number].sum())
    names = data.class_names
    wrong = [(names[t], names[p]) for t, p in zip(every.targets, every.predicted, strict=True) if t != p]
    assert sum(one.images for one in found.confusions) == len(wrong)
    assert {(one.target, one.answer) for one in found.confusions} == set(wrong)


def test_a_prediction_is_the_answer_that_is_counted(root: str, lively: Callable[..., nn.Module]) -> None:
    torch.manual_seed(3)
    model = Coarse(lively(num_classes=7), 7).eval()
    data = open_dataset(str(root), "val")
    every = outcomes(model, data)
    report = tcnn.predict(model, [data.load(int(index))[0] for index in every.indices])
    assert [image.guesses[0].index for image in report] == every.predicted.tolist()
