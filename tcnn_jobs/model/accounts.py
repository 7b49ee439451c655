"""The data model of accounts: tenants with quotas and use, their API keys and links, and the secrets of those.

Of a secret only its SHA-256 is stored. Slow hashes (bcrypt, scrypt, Argon2) are for what people choose and others can
guess; 256 random bits cannot be guessed at any speed. A fast hash without salt lets a key be found by an index, and the
time of that look tells nothing: whoever guesses does not choose the digests.
"""

import hashlib
import secrets
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from tcnn.characters import fault
from tcnn_jobs.model.jobs import Model

PREFIX = "tcnn_"
"""Of every secret, so that it is known for one wherever it is found."""
SHARE_PREFIX = "tcnnshare_"
"""Of the secret of every link to a job."""
LONGEST = 100
"""Characters of a tenant's or a key's name."""
LONGEST_LIFE = 36_500 * 86_400.0
"""Seconds after which a key expires, at most: a hundred years."""
DAYS = 30
"""Over which GPU hours are counted."""


class Quotas(Model):
    """Quotas of a tenant; null means unlimited."""

    queued: int | None = Field(default=None, ge=0, lt=2**63)
    """Jobs that wait."""
    running: int | None = Field(default=None, ge=0, lt=2**63)
    """Jobs at once."""
    gpu_hours: Annotated[float, Field(ge=0), AfterValidator(abs)] | None = None  # -0.0 is a float, too
    """Hours of slots, each of which is a GPU where there are any, within the last `DAYS` days."""
    stored: int | None = Field(default=None, ge=0, lt=2**63)
    """Bytes of uploads, as they lie on disk, and of the results of jobs."""


class Use(Model):
    """What a tenant has, in the same measures."""

    queued: int = 0
    running: int = 0
    gpu_hours: float = 0.0
    stored: int = 0


class Tenant(Model):
    """A tenant: somebody who has submitted or uploaded something, or of whom something was set."""

    name: str
    created_at: float
    quotas: Quotas
    use: Use
    own_webhook_secret: bool = False
    """Whether its webhooks are signed with a secret of its own, and not with the service's."""


def is_tenant(name: str) -> bool:
    """Whether this can be a tenant's name."""
    return 0 < len(name) <= LONGEST and name.isascii() and name.isprintable() and not any(sign in name for sign in " :")


class Scope(StrEnum):
    """Scopes of an API key: what it may be used for; without `admin` in its own tenant."""

    READ = "read"
    """To look: GET."""
    SUBMIT = "submit"
    """To submit, upload, cancel, resume and delete: POST and DELETE."""
    ADMIN = "admin"
    """To look at what all tenants have, and at the audit log, and to cancel everybody's jobs; no other change."""


USUAL = frozenset({Scope.READ, Scope.SUBMIT})
"""What a key may be used for unless it was made otherwise, and those of `TCNN_API_KEYS`."""


class NewKey(Model):
    """A key to make. `lasts`: seconds, or None for ever."""

    tenant: str
    name: str = ""
    scopes: frozenset[Scope] = Field(default=USUAL, min_length=1)
    lasts: float | None = Field(default=None, gt=0, le=LONGEST_LIFE)

    @field_validator("tenant")
    @classmethod
    def _is_a_tenant(cls, value: str) -> str:
        if not is_tenant(value):
            raise ValueError("expected ASCII without spaces and colons, as in TCNN_API_KEYS")
        return value

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if len(value) > LONGEST:
            raise ValueError(f"expected at most {LONGEST} characters")
        if wrong := fault(value):
            raise ValueError(f"expected one line of text without {wrong}")
        return value


class ApiKey(Model):
    """A key as it is stored, without its secret. Times are by the database's clock."""

    id: str
    tenant: str
    name: str
    scopes: frozenset[Scope]
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    used_at: float | None = None
    """When it was last used, to a minute."""
    valid: bool
    """Whether it could be used at the time of the look: neither expired nor revoked."""


class Share(Model):
    """A link by which anybody who has it sees one job, and nothing else. Times are by the database's clock."""

    id: str
    job: str
    owner: str
    created_at: float
    expires_at: float
    valid: bool
    """Whether it could be used at the time of the look: neither expired nor revoked."""


def new_secret(prefix: str = PREFIX) -> str:
    """Generate the secret of an API key or of a link: 256 random bits, as text for an HTTP header."""
    return prefix + secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    """SHA-256 digest of a secret: what the database stores of it."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
