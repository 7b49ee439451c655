"""`/jobs/{id}/shares`: links that show one job to whoever has them, for as long as its owner lets them."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from fastapi import Path as InPath
from pydantic import BaseModel, Field

from tcnn_api.access.keys import LOCAL
from tcnn_api.deps import AUTHENTICATED, Changer, Idempotency, JobId, StoreDep
from tcnn_api.description.examples import answer, listed
from tcnn_api.description.openapi import problems
from tcnn_api.errors import Refused
from tcnn_api.schemas import JOB, Page, iso, page_of
from tcnn_jobs.model.accounts import Share

router = APIRouter(prefix="/jobs", tags=["jobs"], dependencies=AUTHENTICATED)

DAY = 86400.0
ID = "share_0123456789abcdef01234567"
EXAMPLE: dict[str, Any] = {
    "id": ID, "job": JOB, "created_at": "2026-11-21T12:00:00.123Z", "expires_at": "2026-11-28T12:00:00.123Z",
}  # fmt: skip
MADE: dict[str, Any] = EXAMPLE | {"secret": "tcnnshare_…", "page": "/#/shared/tcnnshare_…"}


class NewShare(BaseModel, extra="forbid"):
    """A link to create."""

    days: float = Field(default=7, gt=0, le=365, description="Days until the link expires.")


class ShareView(BaseModel):
    """A link to a job."""

    id: str
    job: str
    created_at: str
    expires_at: str

    @classmethod
    def of(cls, share: Share) -> "ShareView":
        """As the job's owner sees it."""
        return cls(id=share.id, job=share.job, created_at=iso(share.created_at), expires_at=iso(share.expires_at))


class ShareMade(ShareView):
    """A new link, with its secret, which is shown only once."""

    secret: str | None = Field(
        description="Use in place of a key, for this job only; null if it has been shown before."
    )
    page: str | None = Field(description="Path of the dashboard's page for the job.")


class ShareList(Page):
    """Links that are valid."""

    data: list[ShareView]


@router.post(
    "/{id}/shares",
    status_code=201,
    summary="Share a job",
    responses={201: answer(MADE, "The link."), **problems(409)},
)
def create(
    job: JobId,
    request: Request,
    store: StoreDep,
    owner: Changer,
    key: Idempotency,
    body: Annotated[
        NewShare | None, Body(openapi_examples={"week": {"summary": "For a week", "value": {"days": 7}}})
    ] = None,
) -> ShareMade:
    """Create a link with which anyone can view this job, its events, log and files, and nothing else, read-only.

    It ends when it expires, when it is revoked, or with the job. A server without keys refuses, as it is open anyway.
    """
    request.state.job = job
    if request.state.principal == LOCAL:
        raise Refused("id", "this server has no keys, so whoever reaches it sees every job; send its page's address")
    made = store.create_share(job, owner, (body or NewShare()).days * DAY, key)
    if made is None:
        raise Refused("Idempotency-Key", "the link that was made with it has ended; use another key for a new one")
    share, secret = made
    return ShareMade(
        **ShareView.of(share).model_dump(), secret=secret, page=None if secret is None else f"/#/shared/{secret}"
    )


@router.get("/{id}/shares", summary="List the links to a job", responses={200: answer(listed(EXAMPLE), "Links.")})
def index(job: JobId, store: StoreDep, owner: Changer) -> ShareList:
    """List the valid links, oldest first. Their secrets are not stored."""
    return ShareList(**page_of(map(ShareView.of, store.shares(job, owner)), more=False))


@router.delete("/{id}/shares/{share}", status_code=204, summary="Revoke a link")
def revoke(
    job: JobId,
    share: Annotated[str, InPath(description="The link's id.", examples=[ID], max_length=100)],
    request: Request,
    store: StoreDep,
    owner: Changer,
) -> None:
    """Revoke a link; it stops working within three seconds. Idempotent."""
    request.state.job = job
    store.revoke_share(share, job, owner)
