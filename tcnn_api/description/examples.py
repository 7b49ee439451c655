"""Examples for the OpenAPI document; a test sends every request and compares every answer with its model."""

from typing import Any

from tcnn_api.schemas import JOB, SHA256

DATASET = "ds_0123456789abcdef01234567"
CHECKPOINT = "ckpt_0123456789abcdef01234567"

TRANSFORM: dict[str, Any] = {
    "convert": {"summary": "Convert a pretrained model", "value": {"model": "resnet50d"}},
    "finetune": {
        "summary": "Convert, then fine-tune in the same job",
        "value": {
            "model": "resnet18.a1_in1k",
            "stride": "remove",
            "finetune": {"dataset": DATASET, "preset": "quick", "config": {"epochs": 3, "lr": 0.0003}},
            "priority": 5,
        },
    },
}
FINETUNE: dict[str, Any] = {
    "job": {
        "summary": "Fine-tune what a job has made",
        "value": {"job": JOB, "dataset": DATASET, "preset": "quick", "config": {"epochs": 10}},
    },
    "chain": {
        "summary": "Fine-tune what a job will make that has not ended, after another one",
        "value": {"job": JOB, "dataset": DATASET, "depends_on": ["job_89abcdef0123456789abcdef"]},
    },
    "checkpoint": {
        "summary": "Fine-tune an uploaded checkpoint",
        "value": {"checkpoint": CHECKPOINT, "dataset": DATASET, "config": {"batch_size": 32, "val_split": 0.1}},
    },
}
EVALUATE: dict[str, Any] = {
    "compare": {
        "summary": "Measure a job's model beside its CNN",
        "value": {"job": JOB, "dataset": DATASET, "against": [{"model": "resnet50d.ra2_in1k"}]},
    },
}
PLAN: dict[str, Any] = {
    "finetune": {
        "summary": "Fine-tune a timm model",
        "value": {"finetune": {"model": "resnet50d", "dataset": DATASET, "preset": "quick"}},
    },
    "transform": {
        "summary": "Convert a model and fine-tune it",
        "value": {"transform": {"model": "resnet18", "finetune": {"dataset": DATASET, "config": {"batch_size": 32}}}},
    },
}
PLANNED: dict[str, Any] = {
    "model": "resnet50d", "device": "cuda", "size": [224, 224], "classes": 2, "train_images": 50, "val_images": 10,
    "epochs": 5, "updates": 5, "batch_size": 32,
    "source": {"parameters": 23531362, "trained_parameters": 23531362, "layers": 0, "flops": 8653551616},
    "result": {"parameters": 27404734, "trained_parameters": 27404734, "layers": 3, "flops": 10189135872},
    "memory": {
        "micro_batch": 32, "configured": 32, "computed": 3865470566, "waiting": 0, "expected": 3865470566,
        "measured": None, "free": 85899345920,
    },
    "phases": [], "epoch_seconds": [],
    "disk": {"checkpoint": 109800000, "resume_point": 329400000, "total": 1207800000, "free": 412000000000},
    "baseline": None, "notes": ["classifier replaced: 1000 → 2 classes"], "problems": [],
    "expected": {"job": JOB, "seconds_per_update": 0.21, "seconds": 1.05},
}  # fmt: skip

PROGRESS: dict[str, Any] = {
    "phase": "training", "epoch": 2, "epochs": 10, "step": 40, "steps": 156, "percent": 12.5, "eta_seconds": 340.0,
    "loss": 1.42, "lr": 0.0005, "temperature": 0.3, "images_per_second": 410.0, "top1": 0.71,
}  # fmt: skip
_QUEUED: dict[str, Any] = {
    "id": JOB, "tenant": "team", "kind": "transform", "name": None, "tags": [], "note": None, "status": "queued",
    "metrics": {}, "created_at": "2026-11-21T12:00:00.123Z",
    "started_at": None, "finished_at": None, "attempt": 0, "max_attempts": 3, "max_runtime": None,
    "stall_minutes": 60.0, "priority": 0, "queue_position": 2, "waiting_for": None, "retry_at": None,
    "cancel_requested": False, "progress": None, "request": {"model": "resnet50d"}, "result": None, "error": None,
}  # fmt: skip
FILE: dict[str, Any] = {
    "name": "converted.safetensors",
    "url": f"/jobs/{JOB}/files/converted.safetensors",
    "size": 111754321,
    "sha256": SHA256,
}
QUEUED = _QUEUED
RUNNING: dict[str, Any] = _QUEUED | {
    "status": "running", "started_at": "2026-11-21T12:00:01.500Z", "attempt": 1, "queue_position": None,
    "progress": PROGRESS,
}  # fmt: skip
SUCCEEDED: dict[str, Any] = RUNNING | {
    "status": "succeeded", "finished_at": "2026-11-21T12:01:20.250Z",
    "metrics": {"parameters_before": 25576264, "parameters_after": 27911092},
    "result": {
        "checkpoint": {"url": f"/jobs/{JOB}/checkpoint", "size": 111754321, "sha256": SHA256},
        "files": [FILE],
        "verification": {"passed": True},
        "metrics": {"parameters_before": 25576264, "parameters_after": 27911092},
        "notes": [],
    },
}  # fmt: skip
LABELS: dict[str, Any] = {
    "all": {
        "summary": "Name, tags and note",
        "value": {"name": "resnet50d, no mixup", "tags": ["ablation", "mixup"], "note": "as in the table"},
    },
    "some": {"summary": "Another name; tags and note stay", "value": {"name": "the best so far"}},
}
NAMED: dict[str, Any] = SUCCEEDED | LABELS["all"]["value"]
CANCELLED: dict[str, Any] = _QUEUED | {
    "status": "cancelled",
    "finished_at": "2026-11-21T12:00:09.000Z",
    "queue_position": None,
}
EVENTS: dict[str, Any] = {
    "object": "list", "has_more": False,
    "data": [
        {"seq": 1, "at": "2026-11-21T12:00:00.123Z", "kind": "queued", "data": {}},
        {"seq": 2, "at": "2026-11-21T12:00:01.500Z", "kind": "started", "data": {"attempt": 1, "worker": "gpu1-4242"}},
    ],
}  # fmt: skip
STREAM = (
    'id: 1\nevent: queued\ndata: {"seq": 1, "at": "2026-11-21T12:00:00.123Z", "kind": "queued", "data": {}}\n\n'
    'event: progress\ndata: {"phase": "training", "percent": 12.5}\n\n'
)
LIVE = f'event: jobs\ndata: {{"order": ["{JOB}"], "changed": [], "has_more": false, "next": null}}\n\n'
METRICS = "kind,updates,loss,val.top1\ntrain,20,2.31,\nepoch,156,,0.71\n"


def answer(example: Any, description: str, media: str = "application/json", **more: Any) -> dict[str, Any]:
    """One entry of a route's `responses=`; text has a schema, without which generated clients leave it out."""
    schema: dict[str, Any] = {"schema": {"type": "string"}} if media.startswith("text/") else {}
    return {"description": description, "content": {media: {**schema, "example": example}}, **more}


def listed(*rows: dict[str, Any]) -> dict[str, Any]:
    """A list's envelope."""
    return {"object": "list", "data": list(rows), "has_more": False}


def begun(*rows: dict[str, Any]) -> dict[str, Any]:
    """The envelope of a list of which this is the first page."""
    return listed(*rows) | {"has_more": True, "next": "next_WzE3XQ"}
