"""What a job's process tells its owner: by the names that the request used, not by where files lie on this host."""

from pathlib import Path
from typing import Any

from tcnn_jobs.attempt import Assignment
from tcnn_jobs.errors import for_requests


def public(message: str, assignment: Assignment) -> str:
    """A message without this host's paths, which are not to be disclosed, and in the words of requests."""
    return for_requests(str(unplaced(message, assignment)).replace(f"{Path.cwd()}/", ""))


def unplaced(value: Any, assignment: Assignment) -> Any:
    """A result, or a part of one, in which files of the job are called what the request calls them."""
    if isinstance(value, str):
        places = {path: str(_named(assignment.request, field)) for field, path in assignment.paths.items()}
        for path in sorted(places, key=len, reverse=True):
            value = value.replace(path, places[path])
        return value
    if isinstance(value, dict):
        return {key: unplaced(one, assignment) for key, one in value.items()}
    return [unplaced(one, assignment) for one in value] if isinstance(value, list) else value


def _named(request: dict[str, Any], field: str) -> Any:
    """The name that a request gives to one of its references, by field: `source`, `dataset`, `against.1`,
    `against.1.weights`."""
    name, *place = field.split(".")
    if name == "against":
        request, name = request["against"][int(place[0])], place[1] if place[1:] else "source"
    if name == "source":
        return request.get("job") or request.get("checkpoint")
    return request.get(name) or (request.get("finetune") or {}).get(name) or name
