"""The data model of tenants: what each may have, and what it has."""

from pydantic import Field

from tcnn_jobs.model.jobs import Model

DAYS = 30
"""Over which GPU hours are counted."""


class Quotas(Model):
    """The most that a tenant may have; None is any amount."""

    queued: int | None = Field(default=None, ge=0)
    """Jobs that wait."""
    running: int | None = Field(default=None, ge=0)
    """Jobs at once."""
    gpu_hours: float | None = Field(default=None, ge=0)
    """Hours of slots, each of which is a GPU where there are any, within the last `DAYS` days."""
    stored: int | None = Field(default=None, ge=0)
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
