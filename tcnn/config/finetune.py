"""Settings of fine-tuning (`FinetuneConfig`). The defaults are the recipe of the paper (Transformed CNNs, §3).

Its augmentation is DeiT's; names are timm's where timm has one.
"""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from tcnn.config.base import Frozen
from tcnn.config.conversion import ConversionConfig
from tcnn.config.values import MOST, MOST_PIXELS, NEVER, AutoAmp, Device, Limit, Side, Size, Temperature, setting
from tcnn.formatting import some
from tcnn.processes import MOST_WORKERS

Share = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]

WARMUP = 5.0
"""Epochs of linear warm-up in the paper, of 50 (Transformed CNNs, §3)."""

RUNTIME = frozenset(
    {
        "device",
        "workers",
        "compile",
        "cuda_graph",
        "checkpoint_minutes",
        "checkpoint_steps",
        "keep",
        "log_steps",
        "tensorboard",
    }
)
"""Settings that change how a run is executed but not what it computes; a resumed run may change them."""

DEFAULT_SPLIT = 0.1
"""Share of the training images that is held out where nothing says what to validate on."""


class FinetuneConfig(Frozen):
    """How a model is fine-tuned; the defaults are those of `tcnn finetune`, the paper's recipe."""

    # What is trained.
    convert: bool = Field(default=True, description="Train the T-CNN; false trains the CNN with the same recipe.")
    convert_at: int | None = Field(
        default=None, ge=1, le=MOST, description="Train the CNN for this many epochs, then convert it (paper, §5)."
    )
    conversion: ConversionConfig = Field(
        default=ConversionConfig(), description="How a CNN is converted; a checkpoint keeps its own conversion."
    )
    filters: Literal["pretrained", "random"] = Field(
        default="pretrained", description="Keep the converted filters, or initialise them at random (an ablation)."
    )
    init: Literal["default", "impulse", "mimetic", "convolution", "random"] = Field(
        default="default",
        description="Initialisation of a vision transformer, ConViT or ConvMixer, as in `tcnn init`; only "
        "without pretrained weights.",
    )
    freeze: Literal["none", "trunk", "spatial"] = Field(
        default="none",
        description="`trunk`: everything before the converted stage keeps its weights and statistics, "
        "which saves time and memory. `spatial`: the filters of depthwise convolutions are frozen, so only "
        "the mixing of channels is trained (an ablation).",
    )
    freeze_gpsa: bool = Field(
        default=False, description="Train everything but the GPSA layers, including those of a ConViT (an ablation)."
    )
    gating: bool = Field(default=True, description="False fixes λ at 0: content and position have equal weight.")
    size: Side | Size | None = Field(
        default=None,
        description="Pixels, one number or (height, width). Default: the paper's for its models (Table 1), else the "
        "model's own test size.",
    )
    drop_path: Share | None = Field(
        default=None,
        description="Stochastic depth rate. Default: the paper's for its models (Table 1), else 0.1 or 0.2 by "
        "size; a module keeps its own.",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Random seed.")

    # The data.
    val_split: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Fraction of the training set to hold out for validation; refused together with "
        "validation images. Without either, a tenth is held out.",
    )
    fraction: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Class-balanced fraction of the training set; the number of epochs is divided by it.",
    )
    workers: int = Field(default=4, ge=0, le=MOST_WORKERS, description="Processes that load and augment images.")
    max_unreadable: int = Field(
        default=100, ge=0, le=NEVER, description="Largest number of unreadable images; more end the run."
    )

    # Optimizer and schedule.
    epochs: int = Field(default=50, ge=1, le=MOST, description="Passes over the training set, warm-up included.")
    batch_size: int = Field(default=1024, ge=1, le=MOST, description="Images per optimizer step, over all devices.")
    micro_batch: int | None = Field(
        default=None,
        ge=1,
        le=MOST,
        description="Images per pass on one device. Default: at most 128 on a GPU, 64 on a CPU.",
    )
    opt: str = Field(default="adamw", description="A timm optimizer.")
    lr: Rate = Field(default=1e-4, description="Learning rate after the warm-up.")
    gating_lr: Rate = Field(default=0.1, description="Learning rate of the gating parameters λ after the warm-up.")
    attention_lr: Rate | None = Field(
        default=None, description="Learning rate of W_qry and W_key after the warm-up. Default: `lr`, as in the paper."
    )
    value_lr: Rate | None = Field(default=None, description="Learning rate of W_val after the warm-up. Default: `lr`.")
    output_lr: Rate | None = Field(
        default=None, description="Learning rate of W_out, the filters, after the warm-up. Default: `lr`."
    )
    content_output_scale: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Factor on the learning rate of W_out for the columns of content heads, which start at zero.",
    )
    position_lr: Rate | None = Field(
        default=None,
        description="Learning rate of strengths α and centres Δ after the warm-up. Default: `lr`, as in the paper.",
    )
    warmup_epochs: Rate | None = Field(
        default=None,
        description="Epochs of linear warm-up. Default: 5, or a tenth of the epochs if there are fewer than 50.",
    )
    warmup_lr: Rate = Field(
        default=1e-6, description="Learning rate at the start of the warm-up; no rate is raised to it."
    )
    min_lr: Rate = Field(
        default=1e-6, description="Learning rate at the end of the cosine decay; no rate is raised to it."
    )
    weight_decay: Rate = Field(
        default=0.05,
        description="Weight decay; not applied to gates, strengths, centres, W_val, biases and normalisation.",
    )
    momentum: Share = Field(default=0.9, description="Momentum of optimizers that have one.")
    clip_grad: Limit = Field(default=None, description="Gradient norm to clip to.")
    ema: float | None = Field(
        default=None, gt=0, lt=1, description="Decay of a moving average of the weights, which starts after annealing."
    )
    anneal: Literal["warmup", "none", "hold"] = Field(
        default="warmup",
        description="`warmup`: τ moves from its current to its final value during the warm-up. `none`: it "
        "starts at the final value (paper, §2). `hold`: τ stays fixed, and so do λ, α and Δ.",
    )
    anneal_epochs: Rate | None = Field(default=None, description="Epochs of annealing. Default: those of the warm-up.")
    anneal_path: Literal["log", "drift"] = Field(
        default="log",
        description="`log`: equal steps in log τ. "
        "`drift`: equal steps of the share that content, and that neighbours, take from a kernel tap.",
    )
    gate_temperature: Temperature = Field(default=1.0, description="τ of the gates after annealing; 1 is the paper's.")
    position_temperature: Temperature = Field(
        default=1.0, description="τ of positional attention after annealing; 1 is the paper's, at 0.2 taps stay sharp."
    )
    hold: Literal["none", "gates", "all"] = Field(
        default="none",
        description="What is frozen until annealing is over: `gates` (λ), or `all` (λ, α and Δ). The "
        "optimizer state of all three starts afresh then.",
    )
    bn_reestimate: int = Field(
        default=0,
        ge=0,
        le=MOST,
        description="Batches on which batch normalisation statistics are re-estimated after every epoch, "
        "once annealing is over.",
    )

    # Augmentation.
    repeats: int = Field(default=3, ge=1, le=MOST, description="Repeated augmentation: views of an image per batch.")
    auto_augment: str | None = Field(
        default="rand-m9-mstd0.5-inc1", description="timm's AutoAugment/RandAugment string."
    )
    color_jitter: Rate = Field(default=0.3, description="Colour jitter, used if auto_augment is off.")
    train_interpolation: Literal["bicubic", "bilinear", "random"] = Field(
        default="bicubic", description="Interpolation of training crops; `random` picks one of the two for each image."
    )
    scale: tuple[Share, Share] = Field(default=(0.08, 1.0), description="Range of a crop's share of the image.")
    ratio: tuple[Rate, Rate] = Field(default=(0.75, 4 / 3), description="Range of the aspect ratio of a crop.")
    crop_padding: int | None = Field(
        default=None,
        ge=1,
        le=MOST_PIXELS,
        description="Pixels of black padding around the whole image before cropping (4 for the usual "
        "CIFAR crop); replaces `scale` and `ratio`.",
    )
    hflip: Share = Field(default=0.5, description="Probability of a horizontal flip.")
    vflip: Share = Field(default=0.0, description="Probability of a vertical flip.")
    reprob: Share = Field(default=0.25, description="Probability of random erasing.")
    mixup: Rate = Field(default=0.8, description="Mixup's α; 0 is off.")
    cutmix: Rate = Field(default=1.0, description="CutMix's α; 0 is off.")
    mixup_prob: Share = Field(default=1.0, description="Probability that a batch is mixed.")
    mixup_switch_prob: Share = Field(default=0.5, description="Probability of CutMix if both are on.")
    smoothing: Share = Field(default=0.1, description="Label smoothing.")

    # Distillation.
    teacher: str | None = Field(
        default=None,
        description="`source` (the CNN itself), a timm name or a directory with weights. Default: no distillation.",
    )
    distillation: Literal["soft", "hard"] = Field(
        default="soft", description="Match the teacher's distribution (KL), or its decisions (DeiT, Eq. 3)."
    )
    distillation_weight: Share = Field(default=0.5, description="Weight of the teacher's term in the loss.")
    distillation_temperature: Temperature = Field(default=1.0, description="Softmax temperature of soft distillation.")

    matching: Rate = Field(
        default=0.0,
        description="Weight of layer-wise matching during annealing: the squared error of GPSA layers "
        "against their convolutions, relative to the variance; 0 is off.",
    )

    # Arithmetic.
    device: Device = setting(default="auto", description="`auto` is a GPU if there is one; cpu, cuda, cuda:1, mps.")
    amp: AutoAmp = setting(
        default="auto", description="Autocast dtype; `auto` is bfloat16 on a GPU and float32 on a CPU."
    )
    channels_last: bool = Field(default=False, description="Use channels-last memory format.")
    compile: bool = Field(default=False, description="Compile the model with torch.compile.")
    cuda_graph: bool = Field(
        default=False,
        description="Replay the forward and backward passes as a CUDA graph: faster if the GPU waits for "
        "its host, as with small networks and images.",
    )

    # What is kept.
    checkpoint_minutes: float = Field(default=10, gt=0, description="Longest time between two resume points.")
    checkpoint_steps: int | None = Field(
        default=None, ge=1, le=NEVER, description="Optimizer steps between resume points."
    )
    keep: int = Field(default=2, ge=1, le=MOST, description="Number of resume points to keep.")
    log_steps: int = Field(
        default=20, ge=1, le=NEVER, description="Optimizer steps between two lines of metrics.jsonl."
    )
    tensorboard: bool = Field(default=False, description="Also write TensorBoard events.")

    @field_validator("scale", "ratio")
    @classmethod
    def _ordered(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 < value[0] <= value[1]:
            raise ValueError("expected two numbers, 0 < smallest <= largest")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "FinetuneConfig":
        epochs = f"the {some(self.epochs, 'epoch')}"
        if self.convert_at is not None and not self.convert:
            raise ValueError("convert_at: expected convert to be true as well; --no-convert trains the CNN to the end")
        if self.convert_at is not None and self.convert_at >= self.epochs:
            raise ValueError(f"convert_at: expected less than {epochs}, found {self.convert_at}")
        if self.epochs / self.fraction > MOST:
            least = f"{self.epochs / MOST:g} or more, as epochs grow by its inverse, up to {MOST}"
            raise ValueError(f"fraction: expected {least}; found {self.fraction:g}")
        if self.warmup > self.epochs:
            raise ValueError(f"warmup_epochs: expected at most {epochs}, found {self.warmup:g}")
        if self.matching and not (self.convert and self.anneal == "warmup" and self.filters == "pretrained"):
            raise ValueError("matching: expected a T-CNN with pretrained filters that is annealed; give it matching=0")
        if self.cuda_graph and (self.compile or self.matching or self.amp == "float16"):
            other = "compile" if self.compile else "matching" if self.matching else "amp=float16"
            raise ValueError(f"cuda_graph: cannot be combined with {other}; choose one of them")
        if self.batch_size % 2 and (self.mixup or self.cutmix):
            raise ValueError(f"batch_size: mixup needs an even number, found {self.batch_size}")
        return self

    @property
    def warmup(self) -> float:
        """Epochs of linear warm-up: those given, or the paper's 5 of 50, in proportion where there are fewer epochs."""
        return min(WARMUP, self.epochs / 10) if self.warmup_epochs is None else self.warmup_epochs

    @property
    def annealing(self) -> float:
        """Epochs of annealing."""
        return self.warmup if self.anneal_epochs is None else self.anneal_epochs

    @property
    def epoch_factor(self) -> float:
        """Factor of the epochs for a fraction of the data, so that the number of updates stays (paper, §3)."""
        return 1 / self.fraction

    def scaled(self) -> "FinetuneConfig":
        """The configuration in epochs of the fraction, as the trainer uses it."""
        if self.fraction == 1:
            return self
        factor = self.epoch_factor
        return self.model_copy(
            update={
                "epochs": round(self.epochs * factor),
                "warmup_epochs": self.warmup * factor,
                "anneal_epochs": None if self.anneal_epochs is None else self.anneal_epochs * factor,
                "convert_at": None if self.convert_at is None else round(self.convert_at * factor),
            }
        )
