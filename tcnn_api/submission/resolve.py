"""Resolution of every reference of a request: the models, data sets, jobs and uploads that it names, each found once.

Only here are the catalogue, the database and the file system asked. Nothing is downloaded and torch is not loaded.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

from tcnn.errors import UnknownModelError
from tcnn.zoo import catalogue
from tcnn.zoo.catalogue import Entry
from tcnn_api.errors import Refused, quoted
from tcnn_api.settings import ApiSettings
from tcnn_api.submission.body import Submission
from tcnn_jobs.errors import JobNotFound, UploadNotFound
from tcnn_jobs.model.jobs import Job, Upload
from tcnn_jobs.model.naming import Labels
from tcnn_jobs.model.requests import MOST_NAME, Request, datasets_of, models_of, weights_of
from tcnn_jobs.store import Store

_TIMM = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_-]+)?")
_HUB_MODEL = re.compile(r"hf-hub:[A-Za-z0-9_-][A-Za-z0-9_.-]*/[A-Za-z0-9_-][A-Za-z0-9_.-]*(@[A-Za-z0-9_.-]+)?")
_IDS = {
    "job": "a job; POST /finetune takes it as `job`",
    "ckpt": "a checkpoint; POST /finetune takes it as `checkpoint`",
    "wts": "weights, which stand beside their model's name, in `weights`",
    "ds": "a data set",
}
"""What an id is of, by what it begins with, where a model's name is expected."""
_ID = re.compile(rf"({'|'.join(_IDS)})_[0-9a-f]{{24}}")
_KINDS = ("hfds/", "wds/", "torch/")
_URL = "://"
_RANGE = re.compile(r"\{\d+\.\.\d+\}")
"""The only braces of a pattern that cannot spell the name of another directory."""


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A data set: its name as the job is to open it, and the upload if it is one."""

    name: str
    upload: Upload | None = None


class Lookup:
    """Finds for one tenant what a request names. Raises `Refused` with the field that holds a name that is none."""

    def __init__(self, settings: ApiSettings, store: Store, tenant: str) -> None:
        self.settings, self.store, self.tenant = settings, store, tenant

    def model(self, field: str, name: str) -> Entry | None:
        """A timm model, or a hub's where this server allows it; None if the catalogue cannot tell about it."""
        if name.startswith("hf-hub:"):
            if not (_HUB_MODEL.fullmatch(name) and ".." not in name and self._allowed(name)):
                raise Refused(field, f"{quoted(name)}: this server allows {self._hub('hf-hub:')}; use a timm name")
            return None
        if identifier := _ID.fullmatch(name):
            raise Refused(field, f"expected a timm name, found {quoted(name)}, the id of {_IDS[identifier[1]]}")
        if not _TIMM.fullmatch(name):
            raise Refused(
                field,
                f"expected a timm name such as resnet50d or resnet50d.ra2_in1k, found {quoted(name)}; "
                "GET /models lists them; your own weights of one are named beside it, in `weights` (POST /weights)",
            )
        try:
            return catalogue.check(name, default_choice=False)
        except UnknownModelError as error:
            raise Refused(field, str(error).replace("`tcnn models` lists", "GET /models lists")) from error

    def job(self, field: str, name: str) -> Job:
        """A job of the tenant's."""
        try:
            return self.store.get(name, self.tenant)
        except JobNotFound as error:
            raise Refused(field, f"no job {quoted(name)}; GET /jobs lists yours") from error

    def checkpoint(self, field: str, name: str) -> Upload:
        """An uploaded checkpoint."""
        try:
            return self.store.upload(name, "checkpoint", self.tenant)
        except UploadNotFound as error:
            raise Refused(field, f"no checkpoint {quoted(name)}; POST /checkpoints uploads one") from error

    def weights(self, field: str, name: str) -> Upload:
        """Uploaded weights of a CNN."""
        try:
            return self.store.upload(name, "weights", self.tenant)
        except UploadNotFound as error:
            raise Refused(field, f"no weights {quoted(name)}; POST /weights uploads a file of them") from error

    def dataset(self, field: str, name: str) -> Dataset:
        """An uploaded data set, or one that this server allows by name or path."""
        if name.startswith("ds_"):
            try:
                return Dataset(name, self.store.upload(name, "dataset", self.tenant))
            except UploadNotFound as error:
                raise Refused(field, f"no data set {quoted(name)}; POST /datasets uploads one") from error
        if name.startswith(_KINDS) or _URL in name:
            if _climbs(name) or not self._allowed(name):
                allowed = self._hub(name.partition("/")[0] + "/")
                raise Refused(field, f"{quoted(name)}: this server allows {allowed}; upload it (POST /datasets)")
            return Dataset(name)
        return Dataset(self._path(field, name))

    def _path(self, field: str, name: str) -> str:
        """A path below the roots, resolved, so that what was checked is what the job opens."""
        roots = self.settings.dataset_roots
        if not roots:
            raise Refused(
                field, f"expected the id of an uploaded data set (ds_…, POST /datasets), found {quoted(name)}"
            )
        for root in roots:
            try:
                base = root.expanduser().resolve()
                found = (base / name).resolve()
                if not (found.is_relative_to(base) and found.exists()):
                    continue
            except (OSError, ValueError, RuntimeError):
                continue  # a name that is none to this system, or links in a circle
            if len(path := str(found)) > MOST_NAME:  # no worker would read the request
                said = f"leads to a path of {len(path)} characters, {MOST_NAME} at most can be named"
                raise Refused(field, f"{quoted(name)}: {said}; upload it (POST /datasets)")
            return path
        raise Refused(field, f"{quoted(name)}: no data set of this path below the directories that this server allows")

    def slots(self) -> int | None:
        """The most slots that a worker can give to one job; None where none is known, or a larger one may come.

        To a queue in PostgreSQL a larger worker may come at any time, and Ray's cluster may grow: there a job waits.
        """
        if self.settings.engine == "ray" or not self.settings.database.startswith("sqlite"):
            return None
        return max((worker.largest_job for worker in self.store.statistics().workers), default=None)

    def _allowed(self, name: str) -> bool:
        """A URL only by a pattern that is of URLs: a looser one was not meant to let requests into the network."""
        return any(
            fnmatchcase(name, pattern) for pattern in self.settings.hub_names if _URL in pattern or _URL not in name
        )

    def _hub(self, kind: str) -> str:
        """The allowed names of a kind, for messages."""
        names = [pattern for pattern in self.settings.hub_names if pattern.startswith(kind)]
        return f"only {', '.join(names)}" if names else f"no {kind} names (TCNN_HUB_NAMES)"


def _climbs(name: str) -> bool:
    """Whether a name could leave the directory that a pattern of the settings allows it to be in."""
    plain = _RANGE.sub("", name)
    return ".." in plain or "{" in plain or "~" in plain or "\0" in plain or "\\" in plain


@dataclasses.dataclass(frozen=True)
class Resolved:
    """What a request names, by the field that names it: `model`, `against.0.job`, `finetune.dataset`."""

    models: Mapping[str, Entry | None] = dataclasses.field(default_factory=dict)
    """timm's models; None where the catalogue cannot tell about one."""
    jobs: Mapping[str, Job] = dataclasses.field(default_factory=dict)
    waited_for: Mapping[str, Job] = dataclasses.field(default_factory=dict)
    """Jobs that are named for nothing else, by `depends_on.0`."""
    checkpoints: Mapping[str, Upload] = dataclasses.field(default_factory=dict)
    weights: Mapping[str, Upload] = dataclasses.field(default_factory=dict)
    """A CNN's own."""
    datasets: Mapping[str, Dataset] = dataclasses.field(default_factory=dict)
    slots: int | None = None
    """The most that a worker can give to one job, where several processes are asked for; None if a larger may come."""


def resolve(submission: Submission, lookup: Lookup) -> Resolved:
    """Everything that a request names. Raises `Refused` with the field of a name that is none."""
    finetuning = submission.finetuning
    return Resolved(
        models={field: lookup.model(field, name) for field, name in _models(submission, "model")},
        jobs={field: lookup.job(field, name) for field, name in _models(submission, "job")},
        waited_for={field: lookup.job(field, name) for field, name in _depends_on(submission.request)},
        checkpoints={field: lookup.checkpoint(field, name) for field, name in _models(submission, "checkpoint")},
        weights={field: lookup.weights(field, name) for field, name in weights_of(submission.request)},
        datasets={field: lookup.dataset(field, name) for field, name in datasets_of(submission.request)},
        slots=lookup.slots() if finetuning is not None and finetuning.asked.num_workers > 1 else None,
    )


def keep(request: Request, resolved: Resolved) -> dict[str, Any]:
    """The request as the job's row has it: what was given, with data sets named as the job is to open them. What it is
    called is the row's own, which may change."""
    kept = request.model_dump(mode="json", exclude_unset=True, exclude=set(Labels.model_fields))
    for field, dataset in resolved.datasets.items():
        *parents, last = field.split(".")
        part = kept
        for parent in parents:
            part = part[parent]
        part[last] = dataset.name
    return kept


def _depends_on(request: Request) -> Iterator[tuple[str, str]]:
    for place, name in enumerate(request.depends_on):
        yield f"depends_on.{place}", name


def _models(submission: Submission, kind: Literal["model", "job", "checkpoint"]) -> Iterator[tuple[str, str]]:
    """Fields and names of the models of one kind."""
    for prefix, reference in models_of(submission.request):
        name = getattr(reference, kind, None)  # of the three, a transformation has only `model`
        if name is not None:
            yield f"{prefix}{kind}", name
    finetuning = submission.finetuning
    if kind == "model" and finetuning is not None and finetuning.config.teacher not in (None, "source"):
        yield f"{finetuning.prefix}config.teacher", str(finetuning.config.teacher)
