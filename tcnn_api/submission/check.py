"""Validation of a request against the models, jobs and data sets that it names: pure functions."""

from pathlib import Path

from tcnn.config import HARD_TEMPERATURE, ConversionConfig, FinetuneConfig, settings_given
from tcnn.config.effects import RATES, Parts, refuse_without_part
from tcnn.config.evaluation import EvaluationConfig
from tcnn.config.finetune import DEFAULT_SPLIT
from tcnn.data.sources.names import canonical
from tcnn.zoo.catalogue import TAKEN_BY, Entry
from tcnn_api.errors import Refused, quoted
from tcnn_api.submission.body import Finetuning, Submission, errors_under
from tcnn_api.submission.resolve import Resolved
from tcnn_jobs.errors import for_requests
from tcnn_jobs.model.jobs import Job, Kind, Status, Upload
from tcnn_jobs.model.requests import EvaluateRequest, FinetuneRequest, TransformRequest, weights_of

Converting = TransformRequest | FinetuneRequest
GROUPS = ("noise", "blur", "weather", "digital", "extra")
"""Folders of ImageNet-C, each of several corruptions: in an upload they pass for classes."""


WITHOUT_MOMENTUM = "adamw"
"""The optimizer of all presets. Of others a job would have to load timm to know it."""


def check(submission: Submission, resolved: Resolved) -> None:
    """Raises `Refused` with the field to change, if anything of what was resolved is unfit for what is asked."""
    for field, entry in resolved.models.items():
        if entry is not None:
            _check_model(field, entry, submission)
    for field, job in resolved.jobs.items():
        _check_job(field, job)
    for field, job in resolved.waited_for.items():
        _check_goes_on(field, job)
    if submission.finetuning is not None:
        _check_slots(submission.finetuning, resolved.slots)
        if submission.finetuning.asked.baseline:
            _check_baseline(submission.finetuning.prefix, resolved)
        if submission.finetuning.config.init != "default":
            _check_init(submission, submission.finetuning, resolved)
        _check_attention(submission, submission.finetuning, resolved)
        _check_effects(submission, submission.finetuning, resolved)
        _check_datasets(submission.finetuning, resolved)
    if submission.evaluation is not None:
        _check_corrupted(submission, submission.evaluation, resolved)
        _check_measured(submission.evaluation, resolved)


def _check_model(field: str, entry: Entry, submission: Submission) -> None:
    """A timm model has what is asked of it, as what it is named for: source, teacher, or to be evaluated."""
    request, finetuning = submission.request, submission.finetuning
    if field.endswith("config.teacher"):
        _check_weights(field, entry, "name another teacher")
    elif isinstance(request, EvaluateRequest):
        if field.removesuffix("model") + "weights" not in dict(weights_of(request)):
            _check_weights(field, entry, "upload your own (POST /weights), name a model that has, or a checkpoint")
    elif isinstance(request, TransformRequest):
        _check_source(entry, request, "stride", request)
    else:
        conversion = finetuning.config.conversion if finetuning is not None and finetuning.config.convert else None
        _check_source(entry, conversion, "config.conversion.stride", request)


def _check_source(entry: Entry, conversion: ConversionConfig | None, stride: str, request: Converting) -> None:
    """The model has weights if they are wanted, and can be converted so; `stride` is the field that says how."""
    if conversion is not None:
        _check_choice(entry, conversion, stride.removesuffix("stride"))
    if conversion is not None and (conversion.stage != -1 or conversion.target is not None):
        conversion = None  # the catalogue knows of the last stage only
    if conversion is not None and not entry.convertible:
        reason = for_requests(entry.reason or f"{entry.name}: nothing to convert")
        alone = isinstance(request, FinetuneRequest)
        raise Refused("model", f"{reason}; to train it as it is, set config.convert to false" if alone else reason)
    if request.pretrained and request.weights is None:
        _check_weights(
            "pretrained", entry, "upload your own (POST /weights), or set pretrained to false for random ones"
        )
    if conversion is not None and conversion.stride == "remove" and not entry.stride_removable:
        raise Refused(stride, f"{entry.name}: the stride of its last stage cannot be removed; use keep")


def _check_choice(entry: Entry, conversion: ConversionConfig, prefix: str) -> None:
    """The model has the stage and room for the heads that are asked for; of its convolutions tells `target`."""
    if conversion.target is None and entry.stages:
        count = len(entry.stages)
        known = ", ".join(f"{number} ({label})" for number, (label, layers) in enumerate(entry.stages) if layers)
        if not -count <= conversion.stage < count:
            raise Refused(
                f"{prefix}stage",
                f"{entry.name} has {count} stages, found {conversion.stage}; those with convolutions are "
                f"{known or 'none'}, or count from the end: -1 is the last",
            )
        label, layers = entry.stages[conversion.stage]
        if conversion.stage != -1 and not layers:
            raise Refused(
                f"{prefix}stage",
                f"{entry.name}: stage {conversion.stage} ({label}) has no convolution to convert; these have: {known}",
            )
    if conversion.head_dim is not None and entry.widest and conversion.head_dim > entry.widest:
        raise Refused(
            f"{prefix}head_dim",
            f"expected at most {entry.widest}, the most channels that a convolution of {entry.name} reads, found "
            f"{conversion.head_dim}; a wider head costs memory and tells nothing more",
        )


def _check_weights(field: str, entry: Entry, hint: str) -> None:
    if not entry.weights:
        raise Refused(field, f"{entry.name}: timm has no pretrained weights for it; {hint}")


def _check_job(field: str, job: Job) -> None:
    """It has made a checkpoint, or may make one."""
    _check_goes_on(field, job)
    makes_none = job.kind is Kind.EVALUATE if job.result is None else job.checkpoint is None
    if makes_none:
        raise Refused(field, f"{job.id}: this job makes no checkpoint; name a transform or finetune job")


def _check_goes_on(field: str, job: Job) -> None:
    """It has succeeded, or may do so."""
    if job.status in (Status.FAILED, Status.CANCELLED):
        raise Refused(field, f"expected a job that has succeeded or goes on, found {job.id}, which is {job.status}")


def _check_baseline(prefix: str, resolved: Resolved) -> None:
    """What is fine-tuned is a CNN, or has not been trained since it was one: only then a CNN starts where it does."""
    job, checkpoint = resolved.jobs.get("job"), resolved.checkpoints.get("checkpoint")
    trained = job is not None and (job.kind is Kind.FINETUNE or job.request.get("finetune") is not None)
    if trained or (checkpoint is not None and checkpoint.details.get("trained")):
        raise Refused(
            f"{prefix}baseline",
            "the model has been trained since it was converted, so no CNN starts where it does; leave it out, or name "
            "the timm model",
        )


def _check_attention(submission: Submission, finetuning: Finetuning, resolved: Resolved) -> None:
    """A preset that leaves the taps a convolution has content heads to train; else no attention would learn."""
    config, request = finetuning.config, submission.request
    if config.anneal != "hold" or not config.conversion.content_heads:
        return
    if isinstance(request, TransformRequest):
        field, heads, temperature = "content_heads", request.conversion.content_heads, request.conversion.temperature
    else:
        job = resolved.jobs.get("job")
        if job is None or job.kind is not Kind.TRANSFORM or job.request.get("finetune") is not None:
            return
        field, heads = "job", job.request.get("content_heads", 0)
        temperature = job.request.get("temperature", HARD_TEMPERATURE)
    if not heads and temperature <= HARD_TEMPERATURE:
        raise Refused(
            field,
            f"the preset {finetuning.asked.preset} would leave it a convolution, for it has no content heads to learn "
            f"beside its taps; convert with content_heads {config.conversion.content_heads}, or set config.anneal to "
            "warmup and, on few images, config.gate_temperature and config.position_temperature to 0.25",
        )


def _check_effects(submission: Submission, finetuning: Finetuning, resolved: Resolved) -> None:
    """No setting is given of what the model does not have, as far as that is known without it."""
    config, asked = finetuning.config, finetuning.asked
    given = settings_given(config, asked.config, asked.preset)
    with errors_under(f"{finetuning.prefix}config"):
        refuse_without_part(config, given, _parts(submission, config, resolved))


def _parts(submission: Submission, config: FinetuneConfig, resolved: Resolved) -> Parts:
    """What the model has that is fine-tuned; what is not known, it may have."""
    request, momentum = submission.request, config.opt != WITHOUT_MOMENTUM
    entry, job = resolved.models.get("model"), resolved.jobs.get("job")
    if isinstance(request, TransformRequest):
        return Parts(content_heads=request.conversion.content_heads > 0, momentum=momentum)
    if not config.convert:
        attentive, known = entry is None or entry.family == "attentive", entry is not None
        rates = frozenset(RATES if attentive else ())
        gated = not known or entry.family == "convit"  # type: ignore[union-attr]
        return Parts(gated, rates, content_heads=False, apart=attentive, momentum=momentum)
    heads: object = True
    if "model" in resolved.models:
        heads = config.conversion.content_heads
    elif job is not None and job.kind is Kind.TRANSFORM:
        heads = job.request.get("content_heads", 0)
    return Parts(content_heads=bool(heads), momentum=momentum)


def _check_init(submission: Submission, finetuning: Finetuning, resolved: Resolved) -> None:
    """What is to begin anew is random, and of a family that can begin so, where the catalogue tells."""
    field, init, request = f"{finetuning.prefix}config.init", finetuning.config.init, submission.request
    entry = resolved.models.get("model")
    taken = TAKEN_BY.get(entry.family, ()) if entry is not None else (init,)
    if entry is not None and not taken:
        raise Refused(
            field,
            f"{entry.name} is no vision transformer, ConViT or ConvMixer of timm's, which alone begin so; leave it out",
        )
    if entry is not None and init not in taken:
        raise Refused(field, f"{entry.name} takes {' or '.join(taken)}, found {init}")
    if "model" not in resolved.models or (isinstance(request, Converting) and (request.pretrained or request.weights)):
        raise Refused(
            field, "the model has weights, which an initialisation would lose; name a timm model with pretrained: false"
        )


def _check_slots(finetuning: Finetuning, slots: int | None) -> None:
    """As many processes at once as one worker can run, where that is known."""
    count = finetuning.asked.num_workers
    if slots is not None and count > slots:
        most = f"at most {slots}, the slots that this host's largest worker can give to one job (no GPU twice)"
        raise Refused(f"{finetuning.prefix}num_workers", f"expected {most}, found {count}")


def _check_datasets(finetuning: Finetuning, resolved: Resolved) -> None:
    """Uploaded data sets have images to train on, and a batch of them beside those that are held out."""
    asked, config, prefix = finetuning.asked, finetuning.config, finetuning.prefix
    if asked.val is not None:
        if config.val_split is not None:
            raise Refused(f"{prefix}config.val_split", "val names the images to validate on; leave out one of the two")
        _check_split(f"{prefix}val", resolved.datasets[f"{prefix}val"].upload, "val")
    upload = resolved.datasets[f"{prefix}dataset"].upload
    if upload is None:
        return
    _check_split(f"{prefix}dataset", upload, "train")
    share, splits = config.val_split, _splits(upload)
    if share is None and asked.val is None and splits and "val" not in splits:
        raise Refused(
            f"{prefix}config.val_split",
            f"{upload.id} has no split to validate on; it has {', '.join(sorted(splits))}; hold a part of the training "
            "images out (0.1), or name others as val",
        )
    if share is None and not splits:
        share = DEFAULT_SPLIT
    images = _train_images(upload, share if asked.val is None else None)
    if config.batch_size > images:
        raise Refused(
            f"{prefix}config.batch_size",
            f"a batch of {config.batch_size} is larger than the {images} training images of {upload.id}; choose less",
        )


def _check_corrupted(submission: Submission, evaluation: EvaluationConfig, resolved: Resolved) -> None:
    """Settings of corruptions are given with corruptions, or for images that may be ImageNet-C's."""
    from tcnn.evaluation.corruptions import CORRUPTIONS

    request, dataset = submission.request, resolved.datasets["dataset"]
    given = request.config if isinstance(request, EvaluateRequest) else {}
    classes = () if dataset.upload is None else dataset.upload.details.get("classes", ())
    stored = Path(dataset.name).is_dir() if dataset.upload is None else not {*CORRUPTIONS, *GROUPS}.isdisjoint(classes)
    with errors_under("config"):
        evaluation.refuse_without_effect(given, stored)


def _check_measured(evaluation: EvaluationConfig, resolved: Resolved) -> None:
    """An upload has the split to be measured, or one that a run may have held a part of out, which its file tells."""
    upload = resolved.datasets["dataset"].upload
    trained = resolved.jobs or resolved.checkpoints or resolved.weights
    held_out = evaluation.split is None and trained and upload is not None and "train" in _splits(upload)
    if not held_out:
        _check_split("config.split", upload, evaluation.split or "val")


def _check_split(field: str, upload: Upload | None, split: str) -> None:
    """An upload that is divided has the split."""
    splits = {} if upload is None else _splits(upload)
    if upload is not None and splits and (canonical(split) or split) not in splits:
        raise Refused(field, f"{upload.id} has no split {quoted(split)}; it has {', '.join(sorted(splits))}")


def _train_images(upload: Upload, val_split: float | None) -> int:
    """Images that are trained on: what is held out is rounded for each class, which are taken to be of one size."""
    splits = _splits(upload)
    images = int(splits.get("train", 0) if splits else upload.details.get("images", 0))
    share, classes = val_split or 0.0, len(upload.details.get("classes", ())) or 1
    size, larger = divmod(images, classes)
    held_out = larger * round((size + 1) * share) + (classes - larger) * round(size * share)
    return max(images - held_out, round(images * (1 - share)))


def _splits(upload: Upload) -> dict[str, int]:
    """Images by split; empty if it is not divided."""
    return upload.details.get("splits") or {}
