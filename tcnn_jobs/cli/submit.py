"""`tcnn jobs submit transform|finetune|evaluate`: local files are uploaded first, everything else is the server's."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tcnn.cli.options.shared import AsJson, Pretrained, given
from tcnn.cli.options.spellings import processes
from tcnn_jobs.cli.named import dataset_of, model_of, training_of, weights_of
from tcnn_jobs.cli.options import Key, Server, connect, print_json

if TYPE_CHECKING:
    from tcnn_jobs.client.client import Client
    from tcnn_jobs.client.connection import Json

app = typer.Typer(no_args_is_help=True, help="Queue a job.")

Data = Annotated[
    str, typer.Option(help="Images: a local folder or archive (uploaded first), the id of a data set, or a name "
                      "that the server allows.", metavar="DATASET"),
]  # fmt: skip
MaybeData = Annotated[
    str | None,
    typer.Option("--data", help="Also fine-tune on these images, as `submit finetune` does.", metavar="DATASET"),
]
Val = Annotated[str | None, typer.Option(help="Validation images, given in the same ways.", metavar="DATASET")]
Preset = Annotated[str, typer.Option(help="Settings to start from: paper, quick, cifar.", metavar="NAME")]
MaybePreset = Annotated[
    str | None,
    typer.Option("--preset", help="Settings to start from: paper, quick, cifar; default paper.", metavar="NAME"),
]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Any setting; repeatable.", metavar="KEY=VALUE")]
Processes = Annotated[
    int | None,
    typer.Option("--nproc", help="Training processes, one per GPU; default 1.", metavar="N", min=1),
]
OldProcesses = Annotated[int | None, typer.Option("--num-workers", hidden=True, min=1)]
Baseline = Annotated[
    bool, typer.Option("--baseline", help="Afterwards train the CNN in the same way, and compare the two.")
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="Your weights for the CNN: a local file (uploaded first), or the id of an upload.", metavar="FILE"
    ),
]
Priority = Annotated[int, typer.Option(help="−100 to 100; higher priorities run first.", metavar="N")]
Attempts = Annotated[int, typer.Option(help="Attempts before the job fails.", metavar="N")]
Runtime = Annotated[
    float | None,
    typer.Option("--max-runtime", help="Time limit over all attempts; the job then fails.", metavar="SECONDS"),
]
Stall = Annotated[
    float | None, typer.Option("--stall-minutes", help="Kill an attempt after N minutes without progress.", metavar="N")
]
DependsOn = Annotated[
    list[str] | None,
    typer.Option("--depends-on", help="Start only after this job succeeds; repeatable.", metavar="JOB"),
]
Webhook = Annotated[str | None, typer.Option(help="URL to call when the job ends.", metavar="URL")]
Called = Annotated[str | None, typer.Option("--name", help="Name of the job.", metavar="NAME")]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", help="Tag of the job, to find it by; repeatable.", metavar="TAG")
]
Fields = Annotated[
    list[str] | None,
    typer.Option("--field", help="Any other field of the request; repeatable.", metavar="KEY=VALUE"),
]
Once = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key", help="Repeating a request with the same key creates no second job.", metavar="KEY"
    ),
]
Watch = Annotated[bool, typer.Option("--watch", help="Follow the job, as `tcnn jobs watch` does.")]
Source = Annotated[
    str,
    typer.Argument(
        help="The id of a job or checkpoint, a local .safetensors file or run directory, or a timm name.",
        metavar="SOURCE",
    ),
]


@app.command()
def transform(
    model: Annotated[str, typer.Argument(help="A timm name.", metavar="MODEL")],
    stride: Annotated[str, typer.Option(help="keep, remove or dilate.", metavar="keep|remove|dilate")] = "keep",
    stage: Annotated[int | None, typer.Option(help="Index of the stage; −1 is the last.", metavar="N")] = None,
    target: Annotated[
        str | None, typer.Option(help="Convert convolutions by name instead of by --stage.", metavar="REGEX")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="τ > 0; 1/46 is the CNN.", metavar="T")] = None,
    head_dim: Annotated[int | None, typer.Option(help="Width of a head's queries and keys.", metavar="N")] = None,
    content_heads: Annotated[
        int | None, typer.Option(help="Extra heads that attend by content alone.", metavar="N")
    ] = None,
    query_key: Annotated[str | None, typer.Option(help="normal or mimetic.", metavar="normal|mimetic")] = None,
    position: Annotated[
        str | None,
        typer.Option(help="isotropic, quadratic, relative or relative-content.", metavar="KIND"),
    ] = None,
    position_reach: Annotated[
        int | None, typer.Option(help="Largest shift with a relative embedding of its own.", metavar="PIXELS")
    ] = None,
    content: Annotated[
        str | None,
        typer.Option(help="global, window:W or pooled:R; append ,unpadded to leave the padding out.", metavar="SCOPE"),
    ] = None,
    num_classes: Annotated[int | None, typer.Option(help="Width of the classifier.", metavar="N")] = None,
    pretrained: Pretrained = True,
    weights: Weights = None,
    data: MaybeData = None,
    val: Val = None,
    preset: MaybePreset = None,
    assignments: Settings = None,
    baseline: Baseline = False,
    nproc: Processes = None,
    num_workers: OldProcesses = None,
    priority: Priority = 0,
    max_attempts: Attempts = 3,
    max_runtime: Runtime = None,
    stall_minutes: Stall = None,
    depends_on: DependsOn = None,
    webhook: Webhook = None,
    name: Called = None,
    tags: Tags = None,
    fields: Fields = None,
    idempotency_key: Once = None,
    watch: Watch = False,
    server: Server = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Convert a timm model, verify it, and with --data fine-tune it in the same job."""
    conversion = given(
        stride=stride, stage=stage, target=target, temperature=temperature, head_dim=head_dim, content=content,
        content_heads=content_heads, query_key=query_key, num_classes=num_classes, position=position,
        position_reach=position_reach,
    )  # fmt: skip
    body = {
        "model": model,
        "pretrained": pretrained,
        **conversion,
        **_queueing(priority, max_attempts, max_runtime, stall_minutes, depends_on, webhook, name, tags),
    }
    config, shared = _settings(assignments), processes(nproc, num_workers)
    if data is None and (val or preset or config or baseline or shared > 1):
        raise typer.BadParameter(
            "--val, --preset, --set, --baseline and --nproc are for fine-tuning; name the images", param_hint="--data"
        )
    with connect(server, key) as client:
        body |= weights_of(client, weights, idempotency_key)
        if data is not None:
            body["finetune"] = training_of(
                client, data, val, preset or "paper", config, baseline, shared, idempotency_key
            )
        _submit(client, "transform", _with_fields(body, fields), idempotency_key, watch, as_json)


@app.command()
def finetune(
    source: Source,
    data: Data,
    val: Val = None,
    preset: Preset = "paper",
    assignments: Settings = None,
    baseline: Baseline = False,
    nproc: Processes = None,
    num_workers: OldProcesses = None,
    pretrained: Pretrained = True,
    weights: Weights = None,
    priority: Priority = 0,
    max_attempts: Attempts = 3,
    max_runtime: Runtime = None,
    stall_minutes: Stall = None,
    depends_on: DependsOn = None,
    webhook: Webhook = None,
    name: Called = None,
    tags: Tags = None,
    fields: Fields = None,
    idempotency_key: Once = None,
    watch: Watch = False,
    server: Server = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a job's result, a checkpoint, or a timm model, which is converted first."""
    shared = processes(nproc, num_workers)
    with connect(server, key) as client:
        body = {
            **model_of(client, source, idempotency_key),
            **training_of(client, data, val, preset, _settings(assignments), baseline, shared, idempotency_key),
            "pretrained": pretrained,
            **weights_of(client, weights, idempotency_key),
            **_queueing(priority, max_attempts, max_runtime, stall_minutes, depends_on, webhook, name, tags),
        }  # fmt: skip
        _submit(client, "finetune", _with_fields(body, fields), idempotency_key, watch, as_json)


@app.command()
def evaluate(
    source: Source,
    data: Data,
    against: Annotated[
        list[str] | None, typer.Option(help="Another SOURCE to compare with; repeatable.", metavar="SOURCE")
    ] = None,
    weights: Weights = None,
    assignments: Settings = None,
    priority: Priority = 0,
    max_attempts: Attempts = 3,
    max_runtime: Runtime = None,
    stall_minutes: Stall = None,
    depends_on: DependsOn = None,
    webhook: Webhook = None,
    name: Called = None,
    tags: Tags = None,
    fields: Fields = None,
    idempotency_key: Once = None,
    watch: Watch = False,
    server: Server = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model, or compare several."""
    with connect(server, key) as client:
        body = {
            **model_of(client, source, idempotency_key),
            **weights_of(client, weights, idempotency_key),
            "dataset": dataset_of(client, data, idempotency_key),
            "config": _settings(assignments),
            "against": [model_of(client, other, idempotency_key) for other in against or ()],
            **_queueing(priority, max_attempts, max_runtime, stall_minutes, depends_on, webhook, name, tags),
        }  # fmt: skip
        _submit(client, "evaluate", _with_fields(body, fields), idempotency_key, watch, as_json)


def _submit(client: "Client", kind: str, body: "Json", key: str | None, watch: bool, as_json: bool) -> None:
    job = client.submit(kind, body, key)
    if watch:
        from tcnn_jobs.cli.watch import follow

        if not as_json:
            typer.echo(job["id"], err=True)
        raise typer.Exit(follow(client, job["id"], as_json))
    if as_json:
        print_json(job)
    else:
        typer.echo(job["id"])


def _queueing(
    priority: int, max_attempts: int, max_runtime: float | None, stall_minutes: float | None,
    depends_on: list[str] | None, webhook: str | None, name: str | None, tags: list[str] | None,
) -> dict[str, Any]:  # fmt: skip
    return given(
        priority=priority, max_attempts=max_attempts, max_runtime=max_runtime, stall_minutes=stall_minutes,
        depends_on=depends_on, webhook=webhook, name=name, tags=tags,
    )  # fmt: skip


def _with_fields(body: "Json", fields: list[str] | None) -> "Json":
    """The request with other fields, none of which has been said already."""
    more = _settings(fields, "--field")
    if twice := sorted(set(more) & set(body)):
        raise typer.BadParameter(
            f"{twice[0]} is said by an option of its own; leave one of the two out", param_hint="--field"
        )
    return {**body, **more}


def _settings(assignments: list[str] | None, option: str = "--set") -> "Json":
    """``conversion.stride=remove`` → ``{"conversion": {"stride": "remove"}}``; the server knows which there are."""
    if not assignments:
        return {}
    from tcnn.config.presets import assigned

    return assigned(assignments, option)
