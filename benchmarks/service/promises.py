"""What must hold when all is over, whatever was killed, frozen, filled or poisoned meanwhile."""

import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tcnn
from benchmarks.service.deployments import LEASE, Deployment
from tcnn_jobs.artifacts.layout import home_of
from tcnn_jobs.artifacts.shared import open_artifacts
from tcnn_jobs.housekeeping import janitor
from tcnn_jobs.settings import QueueSettings
from tcnn_jobs.store import Store

Call = Callable[..., Any]
"""`call(method, path)` → the answer."""


def broken(call: Call, deployment: Deployment, accepted: Sequence[str], doomed: Sequence[str] = ()) -> Iterator[str]:
    """Everything that is not as promised: jobs that were accepted have succeeded, `doomed` ones have failed."""
    known = {job["id"] for job in _listed(call)}
    if known != {*accepted, *doomed} or len(set(accepted)) != len(accepted):
        yield f"{len(accepted) + len(doomed)} jobs were accepted, the store has {len(known)}"
    for job in doomed:
        view = call("GET", f"/jobs/{job}").json()
        if view["status"] != "failed":
            yield f"{job}: expected to fail, found {view['status']}"
    for job in accepted:
        view = call("GET", f"/jobs/{job}").json()
        if view["status"] != "succeeded":
            yield f"{job}: {view['status']} {view['error']}"
            continue
        events = Counter(event["kind"] for event in call("GET", f"/jobs/{job}/events").json()["data"])
        if events["succeeded"] != 1:
            yield f"{job}: succeeded {events['succeeded']} times"
        content = call("GET", f"/jobs/{job}/checkpoint").content
        if hashlib.sha256(content).hexdigest() != view["result"]["checkpoint"]["sha256"]:
            yield f"{job}: the download is not what was promised"
        file = deployment.root / "check.safetensors"
        file.write_bytes(content)
        if len(tcnn.load(file).state_dict()) == 0:
            yield f"{job}: an empty model"
        file.unlink()
    # The last worker to hear of a finished job cleans up after it, within a beat or two.
    deadline = time.monotonic() + 3 * LEASE
    while (left := list(_left(deployment, accepted, doomed))) and time.monotonic() < deadline:
        time.sleep(0.5)
    yield from left


def states(call: Call) -> dict[str, str]:
    """Every job's status."""
    return {job["id"]: job["status"] for job in _listed(call)}


def _listed(call: Call) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    while True:
        page = call("GET", "/jobs", params={"limit": 100, **after}).json()
        found += page["data"]
        if page["next"] is None:
            return found
        after = {"after": page["next"]}


def _left(deployment: Deployment, accepted: Sequence[str], doomed: Sequence[str]) -> Iterator[str]:
    if deployment.apart is None:
        yield from _left_over(deployment.home, accepted, doomed)
    else:
        yield from _left_over_apart(deployment, accepted, doomed)


def _left_over_apart(deployment: Deployment, accepted: Sequence[str], doomed: Sequence[str]) -> Iterator[str]:
    """After a sweep, which else comes every ten minutes: of every job one attempt in the store, nothing at home.

    Of jobs that failed their logs and resume points may stay.
    """
    store = Store(deployment.database or "")
    for place in deployment.homes:
        settings = QueueSettings(home=place, artifacts=os.environ["TCNN_ARTIFACTS"])
        home = home_of(settings).create()
        artifacts = open_artifacts(settings, home)
        janitor.expire(store, settings, artifacts)
        janitor.sweep_home(home, store, artifacts)
        janitor.keep_room(store, settings, artifacts)
        left = (*home.jobs.iterdir(), *home.incoming.iterdir())
        yield from (f"left at home: {path}" for path in left if path.name not in doomed)
    for job in accepted:
        if len(artifacts.published(job)) != 1:
            yield f"{job}: attempts {artifacts.published(job)} are in the store"
    store.close()


def _left_over(home: Path, accepted: Sequence[str], doomed: Sequence[str]) -> Iterator[str]:
    folders = {path.name: path for path in (home / "jobs").iterdir()}
    if not set(accepted) <= folders.keys() <= {*accepted, *doomed}:
        yield f"folders of {len(folders)} jobs, {len(accepted)} were accepted"
    for path in folders.values():
        attempts = [entry.name for entry in path.iterdir()]
        if path.name in accepted and len(attempts) != 1:
            yield f"{path.name}: attempts {sorted(attempts)} are left"
    yield from (f"stray file {path}" for path in home.rglob("*") if ".tmp" in path.name or path.name.startswith("."))
    yield from (f"stray upload {path}" for path in (home / "incoming").iterdir())
