"""The convolutions that a request selects by name: the model has some of them, as far as the catalogue can tell.

The regular expression is a stranger's, and may take for ever: it is matched in a process of its own
(`tcnn_jobs.confined.patterns`), one at a time for a tenant.
"""

from contextlib import AbstractAsyncContextManager

from tcnn.errors import shorten
from tcnn.zoo.catalogue import unfolded
from tcnn_api.errors import Refused, quoted
from tcnn_api.submission.body import Submission
from tcnn_api.submission.resolve import Resolved
from tcnn_jobs.confined.patterns import SECONDS, matches
from tcnn_jobs.model.requests import TransformRequest


async def check_target(submission: Submission, resolved: Resolved, turn: AbstractAsyncContextManager[None]) -> None:
    """Raises `Refused` for a target that is the whole name of no convolution, or takes too long to match.

    Call it from the server's event loop.

    Args:
        turn: the tenant's at such a process, taken only where one is needed; what it raises is raised.

    Raises `EnvironmentFailure` where no process can be started.
    """
    entry, (field, target) = resolved.models.get("model"), _asked(submission)
    if target is None or entry is None or not entry.convolutions:
        return
    async with turn:
        found = await matches(target, unfolded(entry.convolutions))
    if found is None:
        raise Refused(
            field,
            f"{quoted(target)} takes more than {SECONDS:g} s to match with the names of the convolutions of "
            f"{entry.name}; write it without repeats of what repeats, as in (.+)+",
        )
    if not found:
        raise Refused(
            field,
            f"{quoted(target)} is the whole name of no convolution of {entry.name} that can be converted; they are "
            f"{shorten(', '.join(entry.convolutions), 300)}",
        )


def _asked(submission: Submission) -> tuple[str, str | None]:
    """The field that selects convolutions by name, and the expression if there is one."""
    request, finetuning = submission.request, submission.finetuning
    if isinstance(request, TransformRequest):
        return "target", request.target
    if finetuning is not None and finetuning.config.convert:
        return "config.conversion.target", finetuning.config.conversion.target
    return "", None
