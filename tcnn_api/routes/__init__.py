"""HTTP routes: each validates, asks the store, and answers. Their order is that of the documentation."""

from tcnn_api.routes import (
    archive,
    attention,
    audit,
    checkpoints,
    datasets,
    events,
    files,
    gallery,
    health,
    jobs,
    models,
    pages,
    plan,
    predict,
    report,
    shares,
    submit,
    system,
    weights,
    workers,
)

ROUTERS = tuple(
    module.router
    for module in (
        models,
        datasets,
        gallery,
        checkpoints,
        weights,
        submit,
        plan,
        jobs,
        shares,
        events,
        files,
        archive,
        report,
        predict,
        attention,
        audit,
        workers,
        system,
        health,
        pages,
    )
)
