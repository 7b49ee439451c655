"""The report of a plan: what fine-tuning takes in memory, time and disk. Loads no torch."""

from collections.abc import Iterator

from pydantic import Field

from tcnn.config.base import Record
from tcnn.formatting import Printed, columns, duration, scale, some


class PlannedModel(Record):
    """Size and work of a model. FLOPs are 2 × multiply-adds of one image."""

    parameters: int
    trained_parameters: int = Field(description="Parameters that are not frozen.")
    layers: int = Field(description="GPSA layers.")
    flops: int | None = Field(description="FLOPs of one image; null if they cannot be counted.")

    def __str__(self) -> str:
        """Parameters, work and layers in a few words."""
        work = "" if self.flops is None else f", {scale(self.flops)}FLOPs an image"
        frozen = self.parameters - self.trained_parameters
        learns = f", {scale(frozen)} of them frozen" if frozen else ""
        layers = f", {some(self.layers, 'GPSA layer')}" if self.layers else ""
        return f"{scale(self.parameters)} parameters{learns}{work}{layers}"


class PlannedMemory(Record):
    """Memory of the training process in bytes; processes that load images need more on top."""

    micro_batch: int = Field(
        description="Images per pass: the configured number, or as many as fit; 0 if not even one fits."
    )
    configured: int = Field(description="Configured number of images per pass.")
    computed: int = Field(
        description="Memory of the tensors of a step with this many images (at least one), computed from their shapes."
    )
    waiting: int = Field(description="Memory of the images of a step that wait for their pass.")
    expected: int = Field(
        description="Memory of the whole process: `computed`, `waiting`, and what it needs before training."
    )
    measured: int | None = Field(description="Peak memory of the process in real steps; null without them.")
    free: int | None = Field(description="Free memory of the device; null if unknown.")

    @property
    def fits(self) -> bool:
        """Whether the configured images fit at once."""
        return self.micro_batch == self.configured

    @property
    def peak(self) -> int:
        """The measured peak, else the expected one."""
        return self.expected if self.measured is None else self.measured

    def __str__(self) -> str:
        """The peak, how it is known, and what is free, in a few words."""
        how = "computed" if self.measured is None else "measured"
        free = "" if self.free is None else f"; {_bytes(self.free)} free"
        at_once = f"with {self.micro_batch} images at once" if self.micro_batch > 1 else "with one image at once"
        return f"{_bytes(self.peak)}, {how}, {at_once} (tensors {_bytes(self.computed)}){free}"


class PlannedPhase(Record):
    """A part of the run in which every update takes the same time, with its measured times in seconds."""

    name: str = Field(description="CNN, convolution (a T-CNN still computed as one), or attention.")
    begin: int = Field(description="Number of updates before the phase.")
    end: int
    seconds_per_update: float
    images_per_second: float
    seconds_per_validation: float = Field(
        description="Including the re-estimation of batch normalisation statistics, if any."
    )


class PlannedDisk(Record):
    """Disk space of the run's directory in bytes. A file to be replaced exists until the new one is complete."""

    checkpoint: int
    resume_point: int
    total: int = Field(
        description="Best and last checkpoint, the model before its first step if the run converts one, the resume "
        "points that are kept, and one file being written."
    )
    free: int


class TrainingPlan(Printed, Record):
    """Memory, time and disk space of a fine-tuning run, computed, and measured in a few real steps."""

    model: str
    device: str
    size: tuple[int, int] = Field(description="(height, width) of the images in pixels.")
    classes: int
    train_images: int
    val_images: int
    epochs: int
    updates: int
    batch_size: int
    source: PlannedModel | None = Field(
        description="The CNN before its conversion; null if the model is a T-CNN already."
    )
    result: PlannedModel = Field(description="The model at the end of the run.")
    memory: PlannedMemory
    phases: tuple[PlannedPhase, ...] = Field(
        description="Empty if no steps were run because there is not enough memory."
    )
    epoch_seconds: tuple[float, ...] = Field(
        description="Seconds of every epoch including validation; empty in the same case."
    )
    disk: PlannedDisk
    baseline: "TrainingPlan | None" = Field(
        default=None, description="Plan for the CNN that is trained afterwards, if requested."
    )
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = Field(default=(), description="What would make the run fail, and what to do about it.")

    @property
    def seconds(self) -> float | None:
        """Seconds of the whole run, a baseline's included; None where none were measured."""
        own = sum(self.epoch_seconds) if self.epoch_seconds else None
        if own is None or self.baseline is None:
            return own
        return None if self.baseline.seconds is None else own + self.baseline.seconds

    @property
    def disk_bytes(self) -> int:
        """Bytes that the run takes, a baseline's included."""
        return self.disk.total + (0 if self.baseline is None else self.baseline.disk.total)

    def rows(self) -> list[tuple[str, str]]:
        """Images, models, memory, time and disk as a table of two columns."""
        height, width = self.size
        images = f"{self.train_images} to train on, {self.val_images} to validate on, {some(self.classes, 'class')}"
        models = ("CNN", self.source), ("T-CNN" if self.result.layers else "CNN", self.result)
        table = [("images", f"{images}, {height}×{width} pixels")]
        table += [(name, str(model)) for name, model in models if model is not None]
        table += self._run("")
        if self.baseline is not None:
            table += self.baseline._run("CNN's ")
            if self.seconds is not None:
                table.append(("time of both", duration(self.seconds)))
        parts = f"checkpoint {_bytes(self.disk.checkpoint)}, resume point {_bytes(self.disk.resume_point)}"
        table.append(("disk", f"{_bytes(self.disk_bytes)} ({parts}); {_bytes(self.disk.free)} free"))
        return table

    def _run(self, whose: str) -> Iterator[tuple[str, str]]:
        """Memory and time of one run."""
        yield f"{whose}memory", str(self.memory)
        for phase in self.phases:
            speed = f"updates {phase.begin + 1}–{phase.end}: {phase.images_per_second:.3g} images/s"
            yield phase.name, f"{speed}, validation {duration(phase.seconds_per_validation)}"
        if self.epoch_seconds:
            first, last = self.epoch_seconds[0], self.epoch_seconds[-1]
            span = duration(first) + ("" if round(first) == round(last) else f" to {duration(last)}")
            counts = f"{some(self.epochs, 'epoch')}, {some(self.updates, 'update')}"
            yield (
                f"{whose}time",
                f"{span} an epoch, {duration(sum(self.epoch_seconds))} in all ({counts}) on {self.device}",
            )

    def __str__(self) -> str:
        """The table of `tcnn plan`, notes and problems."""
        return "\n".join([columns(self.rows()), *self.notes, *(f"problem: {problem}" for problem in self.problems)])


def _bytes(count: float) -> str:
    return f"{scale(count)}B"


def short_of_memory(memory: PlannedMemory, device: object, whose: str = "") -> str:
    """What is said where the memory that is free is too little; `whose`: of which model, if not of the run's own."""
    images, one = some(memory.configured, "image"), memory.configured == 1
    free = "" if memory.free is None else f" {memory.free / 1e9:.3g} GB"
    held = f"memory: {images}{whose} at once {'does' if one else 'do'} not fit into the{free} free on {device}"
    if memory.micro_batch:
        return f"{held}; give --set micro_batch={memory.micro_batch}"
    return f"{held}{'' if one else ', nor does one'}; choose a smaller --size, --batch-size or model"
