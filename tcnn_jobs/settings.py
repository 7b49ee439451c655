"""Settings that all processes of the service share: `TCNN_…` environment variables."""

import base64
import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from tcnn.errors import RequestError


def split(value: Any) -> Any:
    """The parts of a text, between its commas."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


LONGEST_LEASE = 3600.0
"""Seconds that a worker may be silent at most, whatever is set: for so long its jobs may wait for another one."""
SHORTEST_ON_SQLITE = 60.0
"""Seconds below which a lease may end while its worker waits for its turn at writing to the file."""
A_DAY, A_CENTURY = 86_400, 36_525
MOST_GB = 1e9
"""An exabyte: no disk has more, and its bytes are still a number that the rest of the service can reckon with."""
OF_SERVER = (
    "HOST", "PORT", "API_KEYS", "API_KEYS_FILE", "MAX_BODY_MB", "MAX_UPLOAD_GB", "MAX_UNPACKED_GB", "MAX_FILES",
    "MAX_RATIO", "MAX_LOADER_WORKERS", "MAX_RUNTIME", "STALL_MINUTES", "MAX_STREAMS", "PRESIGNED_SECONDS",
    "MIN_FREE_GB", "DATASET_ROOTS", "HUB_NAMES", "WEBHOOK_HOSTS",
)  # fmt: skip
"""Names of the HTTP server's own settings, which workers are given as well."""
OF_OTHERS = (
    "SERVER", "API_KEY", "ATTENTION", "TRANSPARENT_OPERATORS", "TEST_DATA",
    "IMAGE", "PUBLISHED_PORT", "STOP_GRACE_PERIOD",
)  # fmt: skip
"""Names that clients, layers, tests and Compose read."""

Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(split)]
"""A list, written with commas."""


class QueueSettings(BaseSettings):
    """Read from the environment, in which an empty variable says nothing; arguments go over it. Seconds unless said
    otherwise.
    """

    model_config = SettingsConfigDict(
        env_prefix="TCNN_", frozen=True, extra="ignore", env_ignore_empty=True, allow_inf_nan=False
    )

    home: Path = Field(
        default=Path("~/.tcnn"), description="Where the queue's file, data sets, checkpoints and jobs live."
    )
    database_url: str | None = Field(
        default=None, description="postgresql://… shares the queue among hosts; default a SQLite file in TCNN_HOME."
    )
    artifacts: str | None = Field(
        default=None,
        description="s3://BUCKET/PREFIX, or another URL of fsspec, keeps results and uploads for hosts that share no "
        "folder; default TCNN_HOME.",
    )
    cache_gb: float = Field(
        default=100, gt=0, le=MOST_GB, description="Of what was fetched from TCNN_ARTIFACTS this much stays on a host."
    )
    mirror: float = Field(
        default=30,
        gt=0,
        le=A_DAY,
        description="Between two looks whether a running job has something new for TCNN_ARTIFACTS.",
    )
    lease: float = Field(
        default=60, ge=1, le=LONGEST_LEASE, description="A worker that is silent for so long has lost its jobs."
    )
    grace: float = Field(
        default=30, ge=0, le=A_DAY, description="From SIGTERM to SIGKILL: time to write a resume point."
    )
    poll: float = Field(default=1, gt=0, le=LONGEST_LEASE, description="Between two looks at the queue.")
    slots: int | None = Field(
        default=None, ge=1, le=256, description="Jobs at once on this host; default one a GPU, one without a GPU."
    )
    job_memory_gb: float | None = Field(
        default=None,
        gt=0,
        le=MOST_GB,
        description="Of this host's memory a job may take so much for each slot; default any.",
    )
    job_environment: Words = Field(
        default=(), description="Patterns of environment variables that jobs may have too, such as `HF_TOKEN,WANDB_*`."
    )
    engine: Literal["local", "ray"] = Field(
        default="local", description="What trains: local, this host, or ray, a cluster that it belongs to."
    )
    ray_address: str = Field(default="127.0.0.1:6379", description="HOST:PORT of the Ray cluster.")
    retry_delay: float = Field(
        default=10, ge=0, le=A_DAY, description="Before the second attempt; doubled before every next one."
    )
    retention_days: float | None = Field(
        default=None, gt=0, le=A_CENTURY, description="Finished jobs older than this are deleted; default never."
    )
    retention_gb: float | None = Field(
        default=None,
        gt=0,
        le=MOST_GB,
        description="Oldest finished jobs are deleted while their files take more; default never.",
    )
    audit_days: float = Field(
        default=365, gt=0, le=A_CENTURY, description="Entries of the audit log older than this are deleted."
    )
    webhook_secret: str | None = Field(default=None, description="Signs webhooks; without it they carry no signature.")
    log_format: str = Field(
        default="auto",
        pattern="^(auto|json|console)$",
        description="Log lines: json, console, or auto: console on a terminal and json elsewhere.",
    )
    log_level: str = Field(
        default="info", pattern="^(debug|info|warning|error)$", description="debug, info, warning or error."
    )

    @field_validator("webhook_secret")
    @classmethod
    def _decodes(cls, value: str | None) -> str | None:
        if value is not None:
            check_webhook_secret(value)
        return value

    @field_validator("ray_address")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        found = re.fullmatch(r"(\[[^\[\]\s]+\]|[^:/\s]+):(\d{1,5})", value)
        if found is None or not 0 < int(found[2]) < 65536:
            raise ValueError("expected HOST:PORT, such as 127.0.0.1:6379")
        return value

    @property
    def job_memory(self) -> float | None:
        """Bytes of memory for a slot of a job."""
        return None if self.job_memory_gb is None else self.job_memory_gb * 1e9

    @property
    def root(self) -> Path:
        """The home directory, absolute; raises `RequestError`."""
        try:
            return self.home.expanduser().absolute()
        except RuntimeError:  # nobody has this name, or this user has no home
            raise RequestError(
                f"TCNN_HOME={self.home}: expected a directory, found the home of a user that this host does not know; "
                "write its path from / on"
            ) from None

    @property
    def database(self) -> str:
        """The database's URL, the default filled in."""
        return self.database_url or f"sqlite:///{self.root / 'tcnn.db'}"


def doubts(settings: QueueSettings, given: Mapping[str, str] = os.environ) -> Iterable[str]:
    """What is wrong with the settings though it can be worked with, in one line each: for the log, at the start."""
    known = {name.upper() for name in QueueSettings.model_fields} | {*OF_SERVER, *OF_OTHERS}
    unknown = sorted(name for name in given if name.upper().startswith("TCNN_") and name.upper()[5:] not in known)
    said = []
    for name in unknown:
        near = get_close_matches(name.upper()[5:], sorted(known), 1)
        said.append(f"{name} (did you mean TCNN_{near[0]}?)" if near else name)
    if said:
        yield f"no settings are called so, and they are ignored: {', '.join(said)}"
    if settings.lease < SHORTEST_ON_SQLITE and settings.database.startswith("sqlite"):
        yield (
            f"TCNN_LEASE: expected at least {SHORTEST_ON_SQLITE:g} with SQLite, found {settings.lease:g}; "
            "a worker that waits for the file for so long loses its jobs"
        )


def check_webhook_secret(secret: str) -> None:
    """Raise `ValueError` for a secret that is empty, or looks as if it were encoded and is not."""
    if not secret:
        raise ValueError("expected a secret, found nothing")
    if secret.startswith("whsec_"):
        try:
            key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except ValueError:
            key = b""
        if not key:
            raise ValueError("expected base64 after whsec_")


S = TypeVar("S", bound=QueueSettings)


def load_settings(kind: type[S], **given: Any) -> S:
    """Settings from the environment, with what is given (and not None) over it; raises `RequestError`."""
    try:
        return kind(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        raise _settings_error(error) from error


def _settings_error(error: ValidationError) -> RequestError:
    """One line that names the variable."""
    first = error.errors()[0]
    name = "TCNN_" + "_".join(str(part) for part in first["loc"]).upper()
    got = "another text" if "SECRET" in name else repr(first.get("input"))
    return RequestError(f"{name}: {first['msg'].lower()}, got {got}")
