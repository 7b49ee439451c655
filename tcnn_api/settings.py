"""Settings of the HTTP server: `TCNN_…` environment variables, overridden by the options of `tcnn serve`."""

import ipaddress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_settings import NoDecode

from tcnn.config.values import NEVER
from tcnn.errors import RequestError
from tcnn.processes import MOST_WORKERS
from tcnn_jobs.settings import MOST_GB, QueueSettings, Words, load_settings, split

Paths = Annotated[tuple[Path, ...], NoDecode, BeforeValidator(split)]
"""A list, written with commas."""


class ApiSettings(QueueSettings):
    """The queue's settings and the server's own. MB and GB are 10⁶ and 10⁹ bytes; lists are written with commas."""

    host: str = Field(default="127.0.0.1", description="Address to listen on; without API keys only a loopback one.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    api_keys: Words = Field(
        default=(), repr=False, description="`tenant:key,tenant:key`; a key's holder sees only its tenant's jobs."
    )
    api_keys_file: Path | None = Field(
        default=None,
        description="The same, a line each, or `tenant:sha256:HEX` with a key's digest; # begins a comment.",
    )
    max_body_mb: float = Field(default=1.048576, gt=0, le=1000, description="Largest JSON body.")
    max_upload_gb: float = Field(default=10, gt=0, le=MOST_GB, description="Largest upload.")
    max_unpacked_gb: float = Field(default=50, gt=0, le=MOST_GB, description="Largest data set, unpacked.")
    max_files: int = Field(default=150_000, ge=1, le=NEVER, description="Most files of an uploaded data set.")
    max_ratio: float = Field(
        default=100, ge=1, le=NEVER, description="Largest size of a data set, unpacked over packed."
    )
    max_loader_workers: int = Field(
        default=16, ge=0, le=MOST_WORKERS, description="Most data-loading processes of one job."
    )
    max_runtime: float | None = Field(
        default=None,
        ge=1,
        le=1e9,
        description="Most seconds that a job may run in all its attempts; default any number.",
    )
    stall_minutes: float = Field(
        default=60,
        ge=1,
        le=1e6,
        description="A job that reports no progress for so long is killed, unless it asks otherwise.",
    )
    max_streams: int = Field(
        default=64, ge=1, le=NEVER, description="Event streams that one tenant may have open at once."
    )
    presigned_seconds: int | None = Field(
        default=None, ge=1, le=604_800,
        description="With TCNN_ARTIFACTS in S3: a download with `redirect=true` is sent to the store, by a URL that is "
        "valid for so long; default never.",
    )  # fmt: skip
    min_free_gb: float = Field(
        default=1,
        ge=0,
        le=MOST_GB,
        description="With less free space in TCNN_HOME `/readyz` says no; uploads that would leave less are refused.",
    )
    dataset_roots: Paths = Field(
        default=(), description="Directories on the server below which a request may name data sets by path."
    )
    hub_names: Words = Field(
        default=(),
        description="Patterns of hub names that requests may use, such as `hfds/timm/*` or `hf-hub:timm/*`.",
    )
    webhook_hosts: Words = Field(
        default=(), description="Patterns of host names that webhooks may call, such as `*.example.org`."
    )

    @field_validator("presigned_seconds")
    @classmethod
    def _can_be_signed(cls, value: int | None, given: ValidationInfo) -> int | None:
        if value is not None and not (given.data.get("artifacts") or "").startswith("s3://"):
            raise ValueError("expected a store of results at s3:// beside it, for no other signs links")
        return value

    @property
    def max_body(self) -> int:
        """Bytes of a JSON body."""
        return int(self.max_body_mb * 1e6)

    @property
    def max_upload(self) -> int:
        """Bytes of an upload."""
        return int(self.max_upload_gb * 1e9)

    @property
    def protected(self) -> bool:
        """Whether the settings have API keys."""
        return bool(self.api_keys) or self.api_keys_file is not None

    def check_host(self, stored: bool = False) -> None:
        """Raise `RequestError` for an address that others can reach while nobody needs a key.

        `stored`: whether there are keys in the database.
        """
        if not (self.protected or stored or is_loopback(self.host)):
            raise RequestError(
                f"--host {self.host}: without API keys the server listens on a loopback address only; "
                "make one with `tcnn keys create`, set TCNN_API_KEYS or TCNN_API_KEYS_FILE, or use --host 127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine alone."""
    host = host.strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def load(**given: Any) -> ApiSettings:
    """`load_settings` of the HTTP server."""
    return load_settings(ApiSettings, **given)
