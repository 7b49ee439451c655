"""Saves a run: resume points while it trains, the model after every epoch. Only the first process writes."""

import time
from typing import Any

from tcnn.checkpoints import checkpoint
from tcnn.config import FinetuneConfig
from tcnn.training.runs import resume
from tcnn.training.runs.recorder import Recorder
from tcnn.training.runs.resume import Position
from tcnn.training.runs.rundir import RunDirectory
from tcnn.training.updates.learner import Learner


class Saver:
    """Writes into a run's directory what a learner has come to. A full disk costs a resume point.

    Where it takes no model either the run ends, to be resumed: it would say of an epoch that it is kept which is not.

    Args:
        first: whether this is the first process of the run.
        record: what checkpoints state about the run beside its metrics.
    """

    def __init__(
        self, run: RunDirectory, config: FinetuneConfig, recorder: Recorder, *, first: bool, record: dict[str, Any]
    ) -> None:
        self.run, self.config, self.recorder, self.first, self.record = run, config, recorder, first, record
        self._saved: float | None = None

    def due(self, updates: int) -> bool:
        """Whether a resume point is due after so many updates.

        Also after the first step of this process: where steps are long it may be killed before the next is due, and
        what is killed again and again has to get farther every time.
        """
        if self._saved is None:
            return True
        every = self.config.checkpoint_steps
        if every is not None and updates % every == 0:
            return True
        return time.monotonic() - self._saved > 60 * self.config.checkpoint_minutes

    def point(self, learner: Learner, position: Position) -> None:
        """Save a resume point."""
        if self.first:
            scaler: dict[str, Any] = learner.precision.scaler.state_dict()
            self.recorder.ignore_full_disk(
                lambda: resume.save_point(
                    self.run.resume, position, learner.model, learner.optimizer, learner.ema, scaler,
                    self.config.keep, None if learner.matching is None else learner.matching.state,
                )
            )  # fmt: skip
        self._saved = time.monotonic()

    def model(self, learner: Learner, metrics: dict[str, Any], *, best: bool) -> None:
        """Save the model of an epoch as the last one, and as the best one if it is."""
        if self.first:
            sections: dict[str, object] = {"training": {**self.record, "metrics": metrics}}
            for path in (self.run.last, *((self.run.best,) if best else ())):
                checkpoint.save(learner.result, path, sections=sections, force=True)

    def newest(self) -> str:
        """The newest resume point, in words."""
        saved = resume.points(self.run.resume)
        return f"the newest resume point is {saved[0]}" if saved else "nothing was saved yet"
