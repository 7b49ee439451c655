"""The HTTP service: `create_app(settings)`. Nothing happens at import time, and torch is never loaded."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI
from prometheus_client import CollectorRegistry
from starlette.concurrency import run_in_threadpool

from tcnn.version import __version__
from tcnn.zoo import catalogue
from tcnn_api import errors
from tcnn_api.access.authenticate import Authenticate
from tcnn_api.access.credentials import SharedLinks, StoredKeys
from tcnn_api.access.keys import keyring
from tcnn_api.deps import Service, parameters
from tcnn_api.description import openapi
from tcnn_api.middleware import LimitBody, Observe
from tcnn_api.pools import Pools
from tcnn_api.responses.head import AnswerHead
from tcnn_api.responses.stream import Streams
from tcnn_api.routes import models, plan, submit
from tcnn_api.routes.jobs import archive, attention, files, jobs, logs, predict, report, shares
from tcnn_api.routes.operation import health, metrics, pages, system
from tcnn_api.routes.operation.metrics import QueueCollector
from tcnn_api.routes.uploads import checkpoints, datasets, gallery, weights
from tcnn_api.settings import ApiSettings, load
from tcnn_jobs.artifacts.layout import home_of
from tcnn_jobs.artifacts.shared import open_artifacts
from tcnn_jobs.confined.explorers import Explorers
from tcnn_jobs.confined.room import Rooms
from tcnn_jobs.store import Store

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
        files,
        logs,
        archive,
        report,
        predict,
        attention,
        system,
        health,
        metrics,
    )
)
"""In the order of the documentation. What is not in it comes first: a page of the dashboard asks for seventy files, and
routes are tried one by one."""


def create_app(settings: ApiSettings | None = None) -> FastAPI:
    """The application; its lifespan makes the home directory and brings the database to its newest form.

    Raises `RequestError` over settings or API keys that cannot be read; the lifespan raises `EnvironmentFailure`.
    """
    settings = settings or load()
    keys, stored, links = keyring(settings), StoredKeys(), SharedLinks()
    registry = CollectorRegistry()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        home = await run_in_threadpool(home_of(settings).create)
        artifacts = await run_in_threadpool(open_artifacts, settings, home)
        await run_in_threadpool(catalogue.entries)  # a tenth of a second that no request shall wait for
        store, explorers = Store(settings.database), Explorers()
        try:
            await run_in_threadpool(store.migrate)
            await run_in_threadpool(stored.open, store)
            links.open(store)
            registry.register(QueueCollector(store))
            streams, rooms = Streams(settings.max_streams), Rooms(home.incoming, int(settings.min_free_gb * 1e9))
            app.state.service = Service(settings, home, store, registry, streams, explorers, artifacts, Pools(), rooms)
            yield
        finally:
            await explorers.close()
            store.close()

    app = FastAPI(
        title="tcnn",
        version=__version__,
        summary="Convert timm CNNs into Transformed CNNs, fine-tune and evaluate them.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's page loads its scripts from elsewhere; ours is in routes/pages.py
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(parameters)],
    )
    for router in ROUTERS:
        app.include_router(router)
    errors.install(app)
    openapi.install(app)
    # The last one added is the outermost.
    app.add_middleware(AnswerHead)
    app.add_middleware(LimitBody, settings=settings)
    app.add_middleware(Authenticate, keys=keys, stored=stored, links=links)
    app.add_middleware(Observe, registry=registry)
    return app
