"""5,000 requests that the OpenAPI document leads to, to a server with a worker that works, and jobs, data sets and
checkpoints of every kind: no 5xx, and nothing that is not documented."""

import json
import random
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import schemathesis
from data_pictures import draw, draw_classes
from hypothesis import HealthCheck, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, checks
from schemathesis.core.failures import FailureGroup
from serving import serving

from tcnn_api.app import create_app
from tcnn_api.settings import load
from tcnn_jobs.client.client import Client
from tcnn_jobs.model.accounts import NewKey, Scope
from tcnn_jobs.store import Store

CASES = 5000
EACH = 40
"""Cases of each kind to each operation, in a round."""
PICTURES = ("/jobs/{id}/predict", "/jobs/{id}/attention/images")
LOADS = {("post", path) for path in (*PICTURES, "/plan", "/weights", "/checkpoints", "/datasets")}
"""What may start a process that loads PyTorch."""
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
TRAINING = {
    "epochs": 2, "warmup_epochs": 1, "batch_size": 8, "size": 32, "workers": 0, "val_split": 0.34,
    "device": "cpu", "anneal_epochs": None,
}  # fmt: skip
MODEL = {"model": "test_resnet", "pretrained": False}
RESULTS = re.compile(r"GET /(jobs|datasets|checkpoints)/\{id\}.*|POST /(transform|evaluate|jobs/.*predict)")
"""Operations that have something to do here, and must have done it."""
MORE = frozenset({"GET /jobs/{id}/attention/{image}"})
"""What needs the id of a picture, too."""


def _key(home: Path) -> str:
    """A key for everything."""
    store = Store(f"sqlite:///{home / 'tcnn.db'}")
    _, secret = store.create_key(NewKey(tenant="ann", name="all", scopes=frozenset(Scope)))
    store.close()
    return secret


class There:
    """What a server has, so that its operations have something to do."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client, self.luck = client, random.Random(0)
        self.picture = draw(folder / "one.jpg", 7, width=40, height=40).read_bytes()
        images = draw_classes(folder / "set", ["a", "b", "c"], 8)
        sets = [client.upload_dataset(images)["id"] for _ in range(6)]
        training = {"dataset": sets[0], "preset": "quick", "config": TRAINING}
        made = self._ended("transform", {**MODEL, "finetune": {**training, "baseline": True}})
        self.jobs = [made, self._ended("transform", {**MODEL, "num_classes": 3})]
        self.jobs.append(self._ended("finetune", {"job": made, **training}))
        against = {"job": made, "dataset": sets[0], "against": [{"job": self.jobs[1]}]}
        self.jobs.append(self._ended("evaluate", {**against, "config": {"device": "cpu", "workers": 0}}))
        file = client.download(made, folder / "model.safetensors")
        checkpoints = [client.upload_checkpoint(file)["id"] for _ in range(6)]
        self.gone = [self._cancelled() for _ in range(6)]
        self.names = [one["name"] for one in client._server.json("GET", f"/jobs/{made}/checkpoints")["data"]]
        self._ids = {
            ("/jobs", False): cycle(self.jobs), ("/jobs", True): cycle(self.gone),
            ("/datasets", False): cycle(sets[:2]), ("/datasets", True): cycle(sets[2:]),
            ("/checkpoints", False): cycle(checkpoints[:2]), ("/checkpoints", True): cycle(checkpoints[2:]),
        }  # fmt: skip
        self.dataset, self.made = sets[0], made

    def _ended(self, kind: str, request: dict[str, Any]) -> str:
        job = self.client.watch(self.client.submit(kind, request)["id"], poll=0.2)
        assert job["status"] == "succeeded", job["error"]
        return str(job["id"])

    def _cancelled(self) -> str:
        job = str(self.client.submit("transform", {**MODEL, "priority": -100})["id"])
        self.client.cancel(job)
        return job

    def ids(self, case: Any) -> Iterator[str] | None:
        """Ids for an operation, those that may go for one that deletes or changes."""
        changes = case.method in ("DELETE", "PATCH") or case.operation.path.endswith(("/cancel", "/resume"))
        return self._ids.get(("/" + case.operation.path.split("/")[1], changes))

    def fill(self, case: Any) -> None:
        """Three of four requests are for what is there."""
        if self.luck.random() < 0.25:
            return
        parameters, ids = case.path_parameters or {}, self.ids(case)
        if "id" in parameters and ids:
            parameters["id"] = next(ids)
        if "name" in parameters:
            parameters["name"] = self.luck.choice(self.names)
        if case.operation.path in PICTURES:
            case.body, case.media_type = self.picture, "application/octet-stream"
        elif isinstance(case.body, dict):
            self._name(case)

    def _name(self, case: Any) -> None:
        known = {
            "/transform": MODEL,
            "/finetune": {"job": self.made, "model": None, "checkpoint": None, "dataset": self.dataset},
            "/evaluate": {"job": self.made, "model": None, "checkpoint": None, "dataset": self.dataset},
        }
        for name, value in known.get(case.operation.path, {}).items():
            if value is None:
                case.body.pop(name, None)
            else:
                case.body[name] = value


def _asker(
    url: str, key: str, there: There, answers: Counter[tuple[str, int]], problems: dict[str, str]
) -> Callable[[Any], None]:
    headers = {"Authorization": f"Bearer {key}"}

    def ask(case: Any) -> None:
        there.fill(case)
        answer = case.call(base_url=url, headers=headers, timeout=120)
        name = f"{case.method} {case.operation.path}"
        answers[name, answer.status_code] += 1
        try:
            case.validate_response(answer, checks=CHECKS)
        except FailureGroup as group:  # all are told, one of each kind
            for failure in group.exceptions:
                problems.setdefault(f"{name}: {type(failure).__name__} {answer.status_code}", str(failure))

    return ask


def test_nothing_undocumented_is_answered_while_the_service_works(tmp_path: Path) -> None:
    document = create_app(load(home="/nonexistent")).openapi()
    schema = schemathesis.openapi.from_dict(document)
    operations = [(path, method) for path, methods in document["paths"].items() for method in methods]
    answers: Counter[tuple[str, int]] = Counter()
    problems: dict[str, str] = {}
    few = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
    home = tmp_path / "home"
    with serving(home, OMP_NUM_THREADS="1", TCNN_GRACE="5", HF_HUB_OFFLINE="1", TCNN_HUB_NAMES="hfds/timm/*") as server:
        key = _key(home)
        with Client(server.url, key, patience=60) as client:
            ask = _asker(server.url, key, There(client, tmp_path), answers, problems)
            round_ = 0
            while answers.total() < CASES:
                round_ += 1
                for path, method in operations:
                    for mode in GenerationMode:

                        @seed(round_)
                        @settings(few, max_examples=3 if (method, path) in LOADS else EACH)
                        @given(case=schema[path][method].as_strategy(generation_mode=mode))
                        def requests(case: Any) -> None:
                            ask(case)

                        try:
                            requests()
                        except Unsatisfiable:  # nothing of it can be wrong
                            assert mode.is_negative
            assert client.jobs(limit=1)["data"], "it still answers"
    table = {f"{method.upper()} {path}": {} for path, method in operations}
    for (operation, status), count in sorted(answers.items()):
        table[operation][str(status)] = count
    assert not problems, json.dumps(problems, indent=1)
    warnings.warn(f"{answers.total()} requests\n{json.dumps(table, indent=1)}", stacklevel=1)
    done = {name for name, found in table.items() if any(status < "300" for status in found)}
    assert done >= {name for name in table if RESULTS.fullmatch(name)} - MORE, json.dumps(table, indent=1)
