"""HTTP routes: each validates, asks the store, and answers. Their order is that of the documentation.

What is not in it comes first: a page of the dashboard asks for seventy files, and routes are tried one by one.
"""

from tcnn_api.routes import models, plan, submit
from tcnn_api.routes.jobs import archive, attention, events, files, jobs, predict, report, shares
from tcnn_api.routes.operation import audit, health, metrics, pages, system
from tcnn_api.routes.uploads import checkpoints, datasets, gallery, weights

ROUTERS = tuple(
    module.router
    for module in (
        pages,
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
        system,
        health,
        metrics,
    )
)
