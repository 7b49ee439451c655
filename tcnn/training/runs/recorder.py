"""Log a run: metrics, TensorBoard, gates and attention spans, unreadable images; a full disk never ends a run."""

import math
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

from torch import nn

from tcnn.config import FinetuneConfig
from tcnn.errors import EnvironmentFailure, RequestError, StorageError
from tcnn.evaluation.scores import Evaluation
from tcnn.formatting import are, some
from tcnn.layers.self_attention import SelfAttention2d
from tcnn.models.running import gpsa_layers
from tcnn.training.recipe.annealing import Temperatures
from tcnn.training.runs.callbacks import Say
from tcnn.training.runs.resume import Position
from tcnn.training.runs.rundir import RunDirectory


class Recorder:
    """Logger of a run; only the first process writes.

    Args:
        warn: called with one line about a problem that does not end the run.
    """

    def __init__(self, run: RunDirectory, config: FinetuneConfig, first: bool, warn: Say) -> None:
        self.run, self.config, self.first, self.warn = run, config, first, warn
        self._board: Any = _tensorboard(run) if config.tensorboard and first else None

    def step(self, updates: int, **row: Any) -> None:
        """Log a step in metrics.jsonl, every `log_steps` updates."""
        if self.first and updates % self.config.log_steps == 0:
            self.ignore_full_disk(lambda: self.run.append({"kind": "train", **row, "updates": updates}))

    def epoch(self, row: dict[str, Any]) -> None:
        """Log an epoch in metrics.jsonl and summary.csv."""
        if not self.first:
            return
        self.ignore_full_disk(lambda: self.run.append(row))
        self.ignore_full_disk(self.run.write_summary)
        if self._board is not None:
            val = row["val"]
            scalars = {
                "train/loss": row["train_loss"],
                "val/loss": val["loss"],
                "val/top1": val["top1"],
                "lr": row["lr"],
            }
            for key, value in scalars.items():
                if value is not None:
                    self._board.add_scalar(key, value, row["updates"])

    def ignore_full_disk(self, write: Callable[[], object]) -> bool:
        """Call a function that writes; a full disk is a warning and loses that record only, and training goes on.

        Returns whether it was written.
        """
        try:
            write()
        except StorageError as error:
            self.warn(f"{error}; training goes on")
            return False
        return True

    def add_unreadable(self, position: Position, names: Iterable[str]) -> None:
        """Add files to those that could not be read; raises `RequestError` when there are too many."""
        known = position.unreadable
        for name in names:
            if name not in known:
                known.append(name)
                self.warn(f"unreadable, left out: {name}")
        count = position.unreadable_count
        if count > self.config.max_unreadable:
            raise RequestError(
                f"{some(count, 'image')} {are(count)} unreadable, at most "
                f"{self.config.max_unreadable} may be (max_unreadable); "
                f"the first are {', '.join(known[:3])}"
            )

    def close(self) -> None:
        """Write buffered records."""
        if self._board is not None:
            self._board.close()


def layer_state(model: nn.Module) -> dict[str, Any]:
    """Gate σ(λ/τ) and attention span 1/α of every head that has them, and their means (paper, Fig. 4B and C).

    Of networks that are attention throughout, the centre and strength of every head (Cordonnier et al. 2020, Fig. 3).
    """
    layers = gpsa_layers(model)
    gates = {name: layer.gate[: len(layer.gating_param)].tolist() for name, layer in layers.items()}
    spans = {name: (1 / layer.locality_strength).tolist() for name, layer in layers.items()}
    own = {name: module.summary() for name, module in model.named_modules() if isinstance(module, SelfAttention2d)}
    looking = {
        name: {"centres": centres.tolist(), "strengths": strengths.tolist()}
        for name, (strengths, centres) in own.items()
    }
    return {
        **({"looking": looking} if looking else {}),
        "gate_mean": {name: sum(values) / len(values) for name, values in gates.items()},
        "span_mean": {name: sum(values) / len(values) for name, values in spans.items()},
        "gates": gates,
        "spans": spans,
    }


def temperatures(taus: Temperatures | None) -> dict[str, float | None]:
    """τ of the positions as `temperature` (the name from when there was only one), and τ of the gates."""
    gate, position = taus or (None, None)
    return {"temperature": position, "gate_temperature": gate}


def epoch_scores(result: Evaluation) -> dict[str, Any]:
    """The part of an evaluation that is logged for every epoch; a loss that is not finite is null in JSON."""
    loss = result.loss if math.isfinite(result.loss) else None
    return {"top1": result.top1, "top5": result.top5, "loss": loss, "images": result.images}


def check_tensorboard(config: FinetuneConfig) -> None:
    """Raise `EnvironmentFailure` if TensorBoard is configured and not installed."""
    if config.tensorboard and find_spec("tensorboard") is None:
        raise EnvironmentFailure("tensorboard: not installed: pip install tensorboard, or leave it off")


def _tensorboard(run: RunDirectory) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(run.path / "tensorboard")
