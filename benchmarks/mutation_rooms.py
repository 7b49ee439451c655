"""What is mutated: the rooms where a fault would be worst, each with the tests that are to notice it."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Room:
    """What is mutated, and the tests that are to notice."""

    files: tuple[str, ...]
    tests: tuple[str, ...]
    """Files that take seconds; every mutant sees them."""
    others: tuple[str, ...] = ()
    """Files for what lives through those."""
    slow: tuple[str, ...] = ()
    """More files with tests that are marked slow, for `--slow`; those of the other files are tried in any case."""


def tests(folder: str, *names: str) -> tuple[str, ...]:
    """Files of tests by their names."""
    below = {path.stem: path for path in (ROOT / "tests" / folder).rglob("test_*.py")}
    return tuple(below[f"test_{name}"].relative_to(ROOT).as_posix() for name in names)


ROOMS = {
    "terms": Room(
        ("tcnn/layers/terms",),
        tests("layers", "positions", "products", "scope_formula", "gpsa_formula"),
        (
            *tests("layers", "position_kinds", "scope_layer", "dense", "folded", "fused"),
            *tests("layers", "gpsa_torch_features", "exposed", "hard", "terms", "gpsa_compile"),
            *tests("conversion", "position_kinds_of_models"),
        ),
        tests("layers", "citizenship_transforms", "operator_calls"),
    ),
    "layer": Room(
        ("tcnn/layers/functional.py", "tcnn/layers/gpsa.py", "tcnn/layers/base.py"),
        tests("layers", "gpsa_formula", "gpsa_equivalence", "scope_layer"),
        (
            *tests("layers", "gpsa_torch_features", "folded", "fused", "gpsa_memory", "terms", "triton_attention"),
            *tests("layers", "triton_operators", "position_kinds", "exposed", "two_processes"),
            *tests("layers", "hard", "citizenship", "scope_formula"),
            *tests("checkpoints", "load"),
        ),
        tests("layers", "citizenship_transforms", "gpsa_compile", "operator_calls"),
    ),
    "verification": Room(
        ("tcnn/verification",),
        tests("verification", "verify", "verify_differences"),
        (
            *tests("verification", "explain", "verify_harmless", "as_run", "precision"),
            *tests("cli", "cli_verify"),
        ),
    ),
    "conversion": Room(
        ("tcnn/conversion/plan.py", "tcnn/conversion/surgery.py", "tcnn/conversion/strides"),
        tests("conversion", "plan", "surgery", "stride", "dilate"),
        (
            *tests("conversion", "carry", "select", "ties", "named_models", "content_heads", "content_scope"),
            *tests("folding", "fold"),
            *tests("training", "baseline"),
            *tests("checkpoints", "load"),
        ),
        (
            *tests("conversion", "paper_tables", "content_heads", "reparameterise", "annealing"),
            *tests("exporting", "export"),
            *tests("zoo", "sweep"),
        ),
    ),
    "store": Room(
        ("tcnn_jobs/store", "tcnn_jobs/store/accounts", "tcnn_jobs/store/reading", "tcnn_jobs/database"),
        ("tests/jobs/store", "tests/jobs/database"),
        (
            "tests/jobs/store",
            "tests/jobs/database",
            *tests("jobs/worker", "webhooks", "janitor", "contained", "slots"),
        ),  # and on PostgreSQL
        (*tests("chaos", "chaos"), *tests("jobs/worker", "real_jobs"), *tests("jobs/client", "jobs_journey")),
    ),
    "retry": Room(("tcnn_jobs/retry.py",), tests("jobs", "retry")),
    "training": Room(
        (
            *("tcnn/training/recipe", "tcnn/training/runs/resume.py"),
            *(f"tcnn/training/updates/{name}.py" for name in ("learner", "loop", "step")),
        ),
        tests("training", "annealing_course", "freezing", "matching", "objective", "optim", "step", "learner", "late"),
        (
            *tests(
                "training",
                "finetune",
                "resume_exact",
                "resume_files",
                "resume_optimizers",
                "prepare",
                "norm_statistics",
                "stops",
            ),
            *tests("training", "finetune_bad_input", "finetune_data", "baseline", "ddp"),
            *tests("vit", "vit_convolutions"),
        ),
        tests("training", "ddp", "late", "launch"),
    ),
    "folding": Room(
        ("tcnn/folding",),
        tests("folding", "fold", "foldable", "prune"),
        (*tests("folding", "fold_trained", "prune_attentive"), *tests("cli", "cli_fold"), *tests("layers", "fused")),
    ),
    "measuring": Room(
        (
            *(f"tcnn/evaluation/{name}.py" for name in ("evaluate", "held_out", "outcomes", "scores")),
            *(f"tcnn/evaluation/comparing/{name}.py" for name in ("before_after", "comparison", "paired")),
        ),
        tests("evaluation", "paired", "comparison", "held_out", "before_after"),
        (
            *tests("evaluation", "evaluate", "evaluate_modules", "single_images"),
            *tests("cli", "cli_evaluate", "cli_fold"),
        ),
    ),
    "data": Room(
        ("tcnn/data", "tcnn/data/sources"),
        tests("data", "folder", "image_set", "loader", "order", "decode", "decoded", "tar", "shards"),
        (
            *tests("data", "hugging_face", "loader_processes", "remote_shards", "torchvision"),
            *tests("analysis", "images"),
        ),
    ),
    "checkpoints": Room(
        ("tcnn/checkpoints",),
        tests("checkpoints", "checkpoint", "files", "load", "atomic"),
        (
            *tests("checkpoints", "checkpoint_damage", "hub"),
            *tests("conversion", "ties"),
            *tests("cli", "cli_info", "cli_bad_weights", "cli_names", "cli_evaluate"),
            *tests("evaluation", "held_out"),
            *tests("publishing", "push"),
        ),
    ),
    "artifacts": Room(
        ("tcnn_jobs/artifacts",),
        tests("artifacts", "cache", "local_artifacts", "shared_artifacts", "mirror", "bucket"),
        tests("artifacts", "hosts", "links"),
    ),
    "vit": Room(("tcnn/vit",), tests("vit", "vit_convolutions", "vit_initialise"), tests("cli", "cli_init")),
    "exporting": Room(
        ("tcnn/exporting",),
        tests("exporting", "export", "export_sizes"),
        (*tests("cli", "cli_export_push"), *tests("conversion", "outputs"), *tests("training", "baseline")),
    ),
    "publishing": Room(
        ("tcnn/publishing",), tests("publishing", "push", "published_accuracy"), tests("cli", "cli_export_push")
    ),
    "planning": Room(
        ("tcnn/planning",),
        tests("planning", "training_plan", "trial"),
        (*tests("cli", "cli_plan"), *tests("api", "api_plan")),
    ),
    "zoo": Room(
        ("tcnn/zoo",),
        tests("zoo", "catalogue", "register", "weights_files"),
        (*tests("cli", "cli_names", "cli_models", "cli_bad_weights"), *tests("jobs", "own_weights")),
    ),
    "worker": Room(
        ("tcnn_jobs/worker", "tcnn_jobs/attempt.py", "tcnn_jobs/attempts"),
        (
            *tests("jobs", "attempt", "job_runner", "retry", "wording"),
            *tests(
                "jobs/worker", "contained", "gangs", "housekeeping", "janitor", "limits", "service", "slots", "worker"
            ),
        ),
        (
            *tests("jobs", "attempt"),
            *tests("jobs/worker", "contained", "housekeeping", "janitor", "limits", "memory", "slots", "worker"),
            *tests("artifacts", "courier", "hosts"),
        ),
        (*tests("jobs/worker", "real_jobs"), *tests("jobs/client", "jobs_journey"), *tests("chaos", "chaos")),
    ),
    "access": Room(
        (
            "tcnn_api/access",
            *(f"tcnn_api/{name}.py" for name in ("deps", "errors", "middleware", "settings", "pools", "connections")),
        ),
        (
            *tests("api", "admin", "api_chain", "api_jobs", "connections", "pools", "shared_links", "stored_keys"),
            *tests("api", "api_operation", "system"),
        ),
        (*tests("api", "api_access", "api_problems", "serve_process"), *tests("docs", "http_api_page")),
    ),
    "submission": Room(
        ("tcnn_api/submission", "tcnn_api/uploading", "tcnn_api/routes/submit.py", "tcnn_api/routes/uploads"),
        (
            *tests("api", "api_submit", "api_submit_finetune", "beginnings", "submission"),
            *tests("api/uploads", "checkpoint_uploads", "confined", "datasets", "gallery", "hostile_archives"),
            *tests("api/uploads", "weights"),
        ),
        tests("api", "api_problems"),
    ),
    "answers": Room(
        (
            *("tcnn_api/responses", "tcnn_api/routes/jobs", "tcnn_api/routes/operation"),
            *(f"tcnn_api/routes/{name}.py" for name in ("plan", "models")),
        ),
        (
            *tests("api", "admin", "api_events", "api_jobs", "api_operation", "api_plan", "api_results"),
            *tests("api", "shared_links", "system"),
        ),
        (*tests("api", "api_problems", "api_access"), *tests("jobs", "image_answers")),
    ),
    "analysis": Room(
        ("tcnn/analysis", "tcnn/analysis/reading", "tcnn/analysis/charts"),
        tests("analysis", "attention", "images", "inspect", "measures", "timm_attention"),
        (
            *tests("analysis", "plots", "report"),
            *tests("cli", "cli_info", "cli_inspect"),
            *tests("api", "api_operation"),
        ),
    ),
    "cli": Room(
        ("tcnn/cli", "tcnn/cli/commands", "tcnn/cli/options", "tcnn/cli/output"),
        tests("cli", *(f"cli_{name}" for name in ("convert", "evaluate", "finetune", "fold", "names", "options"))),
        tests("cli", *(file.stem.removeprefix("test_") for file in sorted((ROOT / "tests/cli").glob("test_*.py")))),
    ),
}
