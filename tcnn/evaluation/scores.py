"""What an evaluation counts: accuracy of a model, of each class, with intervals, and what was taken for what."""

from typing import Annotated

from pydantic import BaseModel, Field, computed_field

from tcnn.evaluation import intervals

Range = Annotated[tuple[float, float], Field(description="Between these the accuracy lies: a 95 % score interval.")]


class Confusion(BaseModel):
    """How many images of one class were taken for another."""

    target: str
    answer: str
    images: int


class ClassScore(BaseModel):
    """Accuracy of one class."""

    images: int
    right: int
    top1: float | None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def top1_interval(self) -> Range | None:
        """What other images of the class might have given; None without images."""
        return _interval(self.right, self.images)


class Score(BaseModel):
    """Accuracy of a model. Accuracies are shares between 0 and 1 of the images that could be read."""

    images: int
    right: int
    right5: int | None
    top1: float
    top5: float | None
    loss: float
    images_per_second: float

    @computed_field  # type: ignore[prop-decorator]
    @property
    def top1_interval(self) -> Range | None:
        """What other images might have given."""
        return _interval(self.right, self.images)


class Evaluation(Score):
    """Accuracy of a model with counts, scores per class and unreadable files."""

    per_class: dict[str, ClassScore]
    confusions: list[Confusion] = []
    """What was taken for what, the most frequent first; answers that are not finite are not among them."""
    unreadable: list[str]
    unreadable_count: int


def _interval(right: int, images: int) -> tuple[float, float] | None:
    if not images:
        return None
    found = intervals.share(right, images)
    return round(found.low, 6), round(found.high, 6)
