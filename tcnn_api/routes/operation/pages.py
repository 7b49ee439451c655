"""The dashboard at `/` and the API documentation at `/docs`, whose parts are all the server's own."""

import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Request
from fastapi import Path as InPath
from starlette.responses import FileResponse, HTMLResponse, Response

from tcnn.analysis.charts.bundle import concatenate
from tcnn_api.errors import NotFound
from tcnn_api.responses.download import has

router = APIRouter(include_in_schema=False)

DASHBOARD = {
    # No inline script and no inline style: what a stranger named could not run even if it became markup.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
LASTING = "public, max-age=31536000, immutable"
"""What stands under an address with its digest never changes: who comes again asks for the page and nothing else."""
POLICY = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-cache",
}
MEDIA = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}

SHARED = (
    "base.css",
    "dom.js",
    "heads.js",
    "icon.svg",
    "maps.js",
    "numbers.js",
    "picture.js",
    "viewer.css",
    "viewer.js",
)
"""What the dashboard has in common with the page of `tcnn export --explorer`, where it lies."""
ENTRY = "app.js"
"""The page's module, which is sent as one script with all that it imports; the others are there by themselves, too."""
OF_REPORTS = "report.js"
"""What draws the charts of a report; the dashboard has the others of that room."""


class Asset(NamedTuple):
    """A part of the dashboard."""

    content: bytes
    media: str
    etag: str


@cache
def _sources() -> dict[PurePosixPath, bytes]:
    """The dashboard's files by their paths, and beside them those of other rooms. They are few and small, so they are
    read once.
    """
    own = Path(str(files("tcnn_api"))) / "dashboard"
    found = {PurePosixPath(file.relative_to(own).as_posix()): file for file in own.rglob("*.*")}
    page, charts = Path(str(files("tcnn.explorer"))) / "page", Path(str(files("tcnn.analysis.charts")))
    shared = [page / name for name in SHARED] + [file for file in charts.iterdir() if file.name != OF_REPORTS]
    found |= {PurePosixPath(file.name): file for file in shared}
    return {path: found[path].read_bytes() for path in sorted(found) if path.suffix in MEDIA}


@cache
def edition() -> str:
    """A digest of all of the dashboard's files, which stands in the addresses of those that a page asks for."""
    whole = hashlib.sha256()
    for name, content in _sources().items():
        whole.update(f"{name} {len(content)} ".encode() + content)
    return whole.hexdigest()[:16]


@cache
def assets() -> dict[str, Asset]:
    """The dashboard's files by path, as they are sent."""
    found = {str(path): content for path, content in _sources().items()}
    modules = {path: content.decode() for path, content in found.items() if path.endswith(".js")}
    found[ENTRY] = concatenate(modules, ENTRY).encode()
    for page in (path for path in found if path.endswith(".html")):
        found[page] = found[page].replace(b'"static/dashboard/', f'"static/dashboard/{edition()}/'.encode())
    return {
        path: Asset(content, MEDIA[Path(path).suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
        for path, content in found.items()
    }


def _asset(name: str, request: Request, lasting: bool = False) -> Response:
    if name not in assets():
        raise NotFound("no such page")
    asset = assets()[name]
    headers = {**DASHBOARD, "ETag": asset.etag, **({"Cache-Control": LASTING} if lasting else {})}
    if has(request.headers.get("if-none-match", ""), asset.etag):
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media, headers=headers)


@cache
def _vendored() -> Path:
    return Path(str(files("fastapi_offline"))) / "static"


@router.get("/")
async def home(request: Request) -> Response:
    """The dashboard. What it shows it asks the API for, with the key that a person gives it."""
    return _asset("index.html", request)


@router.get("/static/dashboard/{path:path}")
async def part(path: Annotated[str, InPath()], request: Request) -> Response:
    """The dashboard's scripts and styles: a path among them, or an edition of the page and a path.

    Of another edition, as a server that was upgraded is asked for, there is what there is, and it is not kept.
    """
    of, _, rest = path.partition("/")
    if path in assets():
        return _asset(path, request)
    return _asset(rest, request, lasting=of == edition())


@router.get("/docs")
async def docs() -> HTMLResponse:
    """The OpenAPI document, to read and to try."""
    return HTMLResponse(assets()["docs.html"].content, headers=POLICY)


@router.get("/static/{name}")
def static(name: Annotated[str, InPath()]) -> Response:
    """The parts of the page above, and nothing else."""
    if name not in ("swagger-ui.css", "swagger-ui-bundle.js"):
        raise NotFound("no such page")
    return FileResponse(_vendored() / name, headers={"Cache-Control": "public, max-age=86400"})
