"""The report of a plan: what fine-tuning takes in memory, time and disk. Loads no torch."""

from pydantic import Field

from tcnn.config.base import Record


class PlannedModel(Record):
    """Size and work of a model. FLOPs are 2 × multiply-adds of one image."""

    parameters: int
    trained_parameters: int = Field(description="Those that are not frozen.")
    layers: int = Field(description="GPSA layers.")
    flops: int | None = Field(description="Of one image; null where they cannot be counted.")


class PlannedMemory(Record):
    """Memory of the process that trains, in bytes; processes that load images take their own besides."""

    micro_batch: int = Field(description="Images in one pass: the configured ones, or as many as fit; 0 if none does.")
    configured: int = Field(description="Images in one pass by the configuration.")
    computed: int = Field(description="Tensors of a step with so many images, one at least, from their shapes.")
    waiting: int = Field(description="Images of a step that wait for their pass.")
    expected: int = Field(description="The whole process: `computed`, `waiting`, and what it takes before it trains.")
    measured: int | None = Field(description="The most that the process took in real steps; null without them.")
    free: int | None = Field(description="What the device has free for the process; null if unknown.")

    @property
    def fits(self) -> bool:
        """Whether the configured images fit at once."""
        return self.micro_batch == self.configured

    @property
    def peak(self) -> int:
        """The measured peak, else the expected one."""
        return self.expected if self.measured is None else self.measured


class PlannedPhase(Record):
    """A part of the run in which every update takes the same time, with its measured times in seconds."""

    name: str = Field(description="CNN, convolution (a T-CNN that is still computed as one), attention.")
    begin: int = Field(description="Updates done when it begins.")
    end: int
    seconds_per_update: float
    images_per_second: float
    seconds_per_validation: float = Field(description="With batch normalisation taken anew, if it is.")


class PlannedDisk(Record):
    """Bytes that the run's directory will take. A file that is replaced is there until the new one is whole."""

    checkpoint: int
    resume_point: int
    total: int = Field(description="Best and last checkpoint, the resume points kept, and one file being written.")
    free: int


class TrainingPlan(Record):
    """What fine-tuning takes: in memory, time and disk, computed, and measured in a few real steps."""

    model: str
    device: str
    size: tuple[int, int] = Field(description="(height, width) of the images in pixels.")
    classes: int
    train_images: int
    val_images: int
    epochs: int
    updates: int
    batch_size: int
    source: PlannedModel | None = Field(description="The CNN before its conversion; null for a T-CNN that is given.")
    result: PlannedModel = Field(description="The model at the end of the run.")
    memory: PlannedMemory
    phases: tuple[PlannedPhase, ...] = Field(description="Empty where no steps were taken, as memory does not suffice.")
    epoch_seconds: tuple[float, ...] = Field(description="Of every epoch with its validation; empty likewise.")
    disk: PlannedDisk
    baseline: "TrainingPlan | None" = Field(
        default=None, description="The plan of the CNN that is trained afterwards, if one is asked for."
    )
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = Field(default=(), description="What would end the run, each with what to do.")

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
