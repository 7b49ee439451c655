"""`GET /audit`: the audit log, for keys with the scope `admin`."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from tcnn_api.deps import AUTHENTICATED, AdminOnly, StoreDep
from tcnn_api.description.examples import answer, listed
from tcnn_api.schemas import Page, iso, page_of
from tcnn_jobs.model.operation import AuditEntry

router = APIRouter(tags=["operation"], dependencies=[*AUTHENTICATED, AdminOnly])

MOST = 2**63 - 1
EXAMPLE: dict[str, Any] = {
    "number": 42, "at": "2026-11-21T12:00:00.123Z", "action": "job.cancel", "resource": "job_0123456789abcdef01234567",
    "tenant": "team", "by": "operations", "key": "key_0123456789abcdef01234567",
    "request": "4c0f1e0c9d7e4b5fa0d2f7f6f5b1a7c1", "details": {},
}  # fmt: skip


class AuditView(BaseModel):
    """An audit entry: an action, its resource, and the tenant, key and request that it came from."""

    number: int = Field(description="Counts all entries.")
    at: str
    action: str = Field(description="`job.submit`, `job.cancel`, `dataset.upload`, `key.revoke` …")
    resource: str = Field(description="The id of what was changed; of a tenant its name.")
    tenant: str = Field(description="Whose it is.")
    by: str = Field(description="The tenant of the key, or the user of the command line.")
    key: str = Field(description="The key's id or its place in the settings; `command line`.")
    request: str = Field(description="The request's id, as in the log and in `X-Request-ID`.")
    details: dict[str, Any]

    @classmethod
    def of(cls, entry: AuditEntry) -> "AuditView":
        """The entry as the API shows it."""
        return cls(**{**entry.model_dump(), "at": iso(entry.at)})


class AuditList(Page):
    """A page of entries, newest first; for the next page `after` takes the last one's number."""

    data: list[AuditView]


@router.get("/audit", summary="The audit log", responses={200: answer(listed(EXAMPLE), "Entries.")})
def audit(
    store: StoreDep,
    tenant: Annotated[str | None, Query(description="Only what was done to things of this tenant.")] = None,
    key: Annotated[str | None, Query(description="Only what was done with this key.")] = None,
    after: Annotated[int | None, Query(ge=0, le=MOST, description="The last number of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Entries a page.")] = 100,
) -> AuditList:
    """List changes made by HTTP or on the command line, newest first. Requires the scope `admin`."""
    found, more = store.audit(tenant=tenant, key=key, after=after, limit=limit)
    return AuditList(**page_of(map(AuditView.of, found), more))
