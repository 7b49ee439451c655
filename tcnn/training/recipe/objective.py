"""Training objective: timm's training tasks, mixup and CutMix, and knowledge distillation."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from timm.data import Mixup
from timm.task import ClassificationTask, LogitDistillationTask, TrainingTask
from torch import Tensor, nn
from torch.nn import functional as F

from tcnn.config import FinetuneConfig
from tcnn.data.sources.names import class_name
from tcnn.errors import RequestError
from tcnn.formatting import some
from tcnn.models.running import weights_dtype
from tcnn.models.trace import ShapesOnly, meta_copy, output_count


def create_task(
    model: nn.Module, config: FinetuneConfig, teacher: nn.Module | None, device: torch.device
) -> TrainingTask:
    """Create a timm task: a forward pass and its loss, ``task(images, targets)["loss"]``."""
    loss = {"smoothing": config.smoothing, "soft_targets": uses_mixup(config)}
    if teacher is None:
        return ClassificationTask(model, criterion_kwargs=loss, device=device, verbose=False)
    kind = LogitDistillationTask if config.distillation == "soft" else HardDistillationTask
    task: TrainingTask = kind(
        model, teacher, criterion_kwargs=loss, task_loss_weight=1 - config.distillation_weight,
        temperature=config.distillation_temperature, device=device, verbose=False,
    )  # fmt: skip
    return task.to(device)


class HardDistillationTask(LogitDistillationTask):  # type: ignore[misc]
    """Hard-label distillation: (1 − w)·CE(student, target) + w·CE(student, argmax teacher).

    Source: Touvron et al. 2021 (DeiT), Eq. 3, where w = ½.
    """

    def forward(self, input: Tensor, target: Tensor) -> dict[str, Tensor]:
        student = self.trainable_module(input)
        with torch.no_grad():
            seen = self.teacher.normalize_input(input, self.student_mean, self.student_std)
            decision = self.teacher(seen, return_features=False).argmax(dim=-1)
        task_loss = self.criterion(student, target)
        kd_loss = F.cross_entropy(student, decision)
        loss = self.task_loss_weight * task_loss + self.distill_loss_weight * kd_loss
        return {"loss": loss, "output": student, "task_loss": task_loss, "kd_loss": kd_loss}


def check_training_output(model: nn.Module, image: tuple[int, int, int]) -> None:
    """Raise `RequestError` for a model that returns anything but its logits in training, such as auxiliary ones."""
    try:
        # On a copy without values: a training pass would move the statistics of normalisation.
        with torch.no_grad(), ShapesOnly():
            found = meta_copy(model).train()(torch.empty(2, *image, device="meta", dtype=weights_dtype(model)))
    except Exception:  # what cannot run without values is seen at the first step
        return
    if not isinstance(found, Tensor):
        raise RequestError(
            f"{type(model).__name__}: expected a tensor of logits as its output in training mode, found "
            f"{type(found).__name__}; set its aux_logits to False, or have its forward return the logits alone"
        )


def check_teacher(
    teacher: nn.Module, model: nn.Module, class_names: Sequence[str], size: tuple[int, int] | None = None
) -> None:
    """Raise `RequestError` unless the teacher has the classes of the data set, in its order as far as that is known.

    Args:
        size: (height, width) of the images; default: what the teacher was made for. How many classes it tells apart is
            seen from its output, for its `num_classes` stays when somebody puts another classifier in place of timm's.
    """
    lacking = [name for name in ("pretrained_cfg", "num_classes", "in_chans") if not getattr(model, name, None)]
    if lacking:
        raise RequestError(
            f"teacher: {type(model).__name__} has no {', '.join(lacking)}; timm's distillation needs it, as timm's "
            "models have it"
        )
    found, classes = output_count(teacher, size), len(class_names)
    if found != classes:
        raise RequestError(
            f"teacher: expected {some(classes, 'class')}, as the data set has, found {found}; choose a teacher that "
            "was trained on these classes"
        )
    # Names that are all foreign say nothing: they may be words for folders that are called by numbers.
    cfg: dict[str, Any] = getattr(teacher, "pretrained_cfg", None) or {}
    own = {class_name(name): index for index, name in enumerate(cfg.get("label_names") or ())}
    moved = [name for index, name in enumerate(class_names) if own.get(name, index) != index]
    if moved:
        raise RequestError(
            f"teacher: its class {own[moved[0]]} is {moved[0]!r}, which is class {class_names.index(moved[0])} of the "
            "data set; choose a teacher whose classes have the data set's order"
        )


def uses_mixup(config: FinetuneConfig) -> bool:
    """Whether mixup or CutMix is on, so that targets are distributions."""
    return config.mixup > 0 or config.cutmix > 0


class NeighbourMixup:
    """timm's Mixup and CutMix with neighbouring images of the batch as partners and parameters drawn from a given seed.

    timm mixes image i with image B − 1 − i, so a batch that is split would be mixed differently from a whole one. The
    order of the data is random, so a neighbour is as good a partner, and then nothing depends on how a batch is split.
    """

    def __init__(self, config: FinetuneConfig, classes: int) -> None:
        self._mixup: Any = Mixup(
            mixup_alpha=config.mixup, cutmix_alpha=config.cutmix, prob=config.mixup_prob,
            switch_prob=config.mixup_switch_prob, label_smoothing=config.smoothing, num_classes=classes,
        )  # fmt: skip

    def __call__(self, images: Tensor, targets: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Mix images (B, C, H, W) with targets (B,); returns mixed images and targets (B, classes); B is even."""
        even = torch.arange(0, len(images), 2, device=images.device)
        order = torch.cat([even, even.flip(0) + 1])  # its flip puts every image on its neighbour
        before = np.random.get_state()
        np.random.seed(seed % 2**32)
        try:
            mixed, labels = self._mixup(images[order], targets[order])
        finally:
            np.random.set_state(before)
        back = order.argsort()
        return mixed[back], labels[back]
