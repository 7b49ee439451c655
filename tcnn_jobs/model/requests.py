"""Request models: one object for the HTTP body, the queue's row and the job's process. Never loads torch."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import Field, model_validator

from tcnn.config import ConversionConfig, FinetuneConfig, finetune_config
from tcnn.config.base import Frozen, build
from tcnn.config.conversion import as_kept
from tcnn.config.evaluation import EvaluationConfig
from tcnn_jobs.model.naming import Labels

MOST_NAME = 500
Name = Annotated[str, Field(min_length=1, max_length=MOST_NAME)]
WEIGHTS = "Id of uploaded weights for the model (`POST /weights`), instead of timm's."


class Options(Labels):
    """Options of every job: priority, retries, dependencies, limits, webhook, labels."""

    priority: int = Field(default=0, ge=-100, le=100, description="Jobs with higher priority run first.")
    max_attempts: int = Field(default=3, ge=1, le=100, description="Attempts before the job fails.")
    depends_on: tuple[Name, ...] = Field(
        default=(), max_length=16,
        description="Jobs that must succeed before this one starts, in addition to those that it names as "
        "models. It fails if one of them fails or is cancelled.",
    )  # fmt: skip
    webhook: Annotated[str, Field(max_length=2000)] | None = Field(
        default=None, description="URL to call when the job has succeeded, failed or been cancelled."
    )
    max_runtime: float | None = Field(
        default=None, ge=1, le=1e9,
        description="Time limit in seconds over all attempts; the job is then stopped and fails. Default: "
        "the server's.",
    )  # fmt: skip
    stall_minutes: float | None = Field(
        default=None, ge=1, le=1e6,
        description="Minutes without any progress after which the process is killed; this counts as a "
        "failed attempt. Default: the server's.",
    )  # fmt: skip


class ModelReference(Frozen):
    """A reference to a model: exactly one of a job, an uploaded checkpoint, a timm name."""

    job: Name | None = Field(default=None, description="Id of a job: its checkpoint.")
    checkpoint: Name | None = Field(default=None, description="Id of an uploaded checkpoint.")
    model: Name | None = Field(default=None, description="A timm name.")
    weights: Name | None = Field(default=None, description=f"For a timm model: {WEIGHTS[0].lower()}{WEIGHTS[1:]}")

    @model_validator(mode="after")
    def _one(self) -> "ModelReference":
        given = [name for name in ("job", "checkpoint", "model") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"expected exactly one of job, checkpoint, model; found {' and '.join(given) or 'none'}")
        return self

    @property
    def label(self) -> str:
        """The name that was given, whichever of the three it is."""
        return self.job or self.checkpoint or self.model or ""

    @property
    def measured_as(self) -> str:
        """The name that a result knows it by: two models of one timm name may have weights of their own."""
        return self.weights or self.label


class Training(Frozen):
    """Fine-tuning settings: data, preset, configuration, baseline, processes."""

    dataset: Name = Field(description="Id of an uploaded data set, or the name of one that the server allows.")
    val: Name | None = Field(default=None, description="Validation images. Default: the data set's own split.")
    preset: str = Field(default="paper", description="Settings to start from: paper, quick, cifar.")
    config: dict[str, Any] = Field(
        default={}, description="Any settings of `FinetuneConfig`; they override the preset's."
    )
    baseline: bool = Field(
        default=False,
        description="Afterwards fine-tune the CNN in the same way (same start, batches, updates), and compare the two.",
    )
    num_workers: int = Field(
        default=1, ge=1, le=4096, description="Training processes, one per GPU: of one worker, or of a Ray cluster."
    )

    @property
    def settings(self) -> FinetuneConfig:
        """The whole configuration; raises `RequestError` with one line."""
        return finetune_config(self.preset, options=self.config)


class TransformRequest(Options, ConversionConfig):
    """`POST /transform`: convert a timm model, verify it, and fine-tune it if asked to."""

    model: Name = Field(description="A timm name.")
    pretrained: bool = Field(default=True, description="Pretrained weights, or random ones.")
    weights: Name | None = Field(default=None, description=WEIGHTS)
    num_classes: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Width of the classifier. Default: that of the weights."
    )
    finetune: Training | None = Field(default=None, description="Fine-tune the converted model in the same job.")

    @property
    def conversion(self) -> ConversionConfig:
        """The part that says how to convert; what it leaves open the settings of the fine-tuning may say."""
        own = {name: getattr(self, name) for name in ConversionConfig.model_fields if name in self.model_fields_set}
        return build(ConversionConfig, own, self.finetune.settings.conversion if self.finetune else None)


class FinetuneRequest(Options, Training, ModelReference):
    """`POST /finetune`: fine-tune a job's result, an uploaded checkpoint, or a timm model."""

    pretrained: bool = Field(default=True, description="For a timm model: pretrained weights, or random ones.")


class EvaluateRequest(Options, ModelReference):
    """`POST /evaluate`: evaluate one model, or compare several."""

    dataset: Name = Field(description="Id of an uploaded data set, or the name of one that the server allows.")
    config: dict[str, Any] = Field(default={}, description="Any settings of `EvaluationConfig`.")
    against: tuple[ModelReference, ...] = Field(default=(), max_length=8, description="Models to compare with.")

    @property
    def settings(self) -> EvaluationConfig:
        """The whole configuration; raises `RequestError` with one line."""
        return build(EvaluationConfig, self.config)


class PlanRequest(Frozen):
    """`POST /plan`: a request to plan without submitting it; exactly one of the two."""

    transform: TransformRequest | None = Field(default=None, description="As for `POST /transform`, with `finetune`.")
    finetune: FinetuneRequest | None = Field(default=None, description="As for `POST /finetune`.")

    @model_validator(mode="after")
    def _one(self) -> "PlanRequest":
        if (self.transform is None) == (self.finetune is None):
            raise ValueError("expected exactly one of transform, finetune")
        return self

    @property
    def kind(self) -> str:
        """Which of the two it is."""
        return "finetune" if self.transform is None else "transform"

    @property
    def request(self) -> TransformRequest | FinetuneRequest:
        """The request itself."""
        found = self.transform or self.finetune
        assert found is not None  # noqa: S101 - validated
        return found


Request = TransformRequest | FinetuneRequest | EvaluateRequest
RequestT = TypeVar("RequestT", bound=Options)

KINDS: dict[str, type[Request]] = {
    "transform": TransformRequest,
    "finetune": FinetuneRequest,
    "evaluate": EvaluateRequest,
}


def as_stored(kind: type[RequestT], request: Mapping[str, Any]) -> RequestT:
    """A request from the queue, where one of an earlier release may have both a target and a stage (`as_kept`)."""
    config = request.get("config")
    conversion = config.get("conversion") if isinstance(config, dict) else None
    own = {"config": {**config, "conversion": as_kept(conversion)}} if config and isinstance(conversion, dict) else {}
    return build(kind, {**as_kept(request), **own})


ADDED: dict[str, int] = {
    "depends_on": 2, "baseline": 2, "weights": 2, "examples": 2, "position": 2, "position_reach": 2, "init": 2,
    "value_lr": 3, "output_lr": 3, "content_output_scale": 3,
}  # fmt: skip
"""Fields of requests, and settings in them, that older workers refuse, and the version that brought each. What is not
here every worker understands. 0.1.0 has 1, 0.2.0 has 2; what comes after it is of version 3, and `REQUEST_VERSION` with
it: whoever adds a field raises that once a release."""


def version_of(request: Any) -> int:
    """The request version that a worker must support for a stored request: that of its newest field (`ADDED`)."""
    newest, waiting = 1, [request]  # no recursion: a request may be deep
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            newest = max([newest, *(ADDED[name] for name in item if name in ADDED)])
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
    return newest


def num_workers(request: dict[str, Any]) -> int:
    """The number of processes of data-parallel training that a stored request asks for."""
    training = request.get("finetune") or request
    return int(training.get("num_workers", 1))


def models_of(request: Request) -> Iterator[tuple[str, TransformRequest | ModelReference]]:
    """(field prefix, model) for each model that a request references; the prefix is empty, or `against.0.`."""
    yield "", request
    if isinstance(request, EvaluateRequest):
        for place, other in enumerate(request.against):
            yield f"against.{place}.", other


def weights_of(request: Request) -> Iterator[tuple[str, str]]:
    """(field, uploaded weights) for each that a request names: `weights`, `against.0.weights`."""
    for prefix, model in models_of(request):
        if model.weights is not None:
            yield f"{prefix}weights", model.weights


def datasets_of(request: Request) -> Iterator[tuple[str, str]]:
    """(field, data set) for each that a request references: `dataset`, `val`, `finetune.dataset`, `finetune.val`."""
    prefix, asked = ("finetune.", request.finetune) if isinstance(request, TransformRequest) else ("", request)
    if asked is not None:
        yield f"{prefix}dataset", asked.dataset
    if isinstance(asked, Training) and asked.val is not None:
        yield f"{prefix}val", asked.val
