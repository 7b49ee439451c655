"""Pages for people: `/` and `/docs`, whose scripts are the server's own, so that they work without a network."""

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as InPath
from starlette.responses import FileResponse, HTMLResponse, Response

from api.errors import NotFound
from tcnn.version import __version__

router = APIRouter(include_in_schema=False)

POLICY = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-cache",
}
_SCRIPT = 'SwaggerUIBundle({url: "openapi.json", dom_id: "#docs", deepLinking: true});'

HOME = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>tcnn</title>
<h1>tcnn {__version__}</h1>
<p>Turns timm CNNs into equivalent Transformed CNNs, and fine-tunes them.</p>
<ul><li><a href="docs">What can be asked</a>, as <a href="openapi.json">OpenAPI</a>
<li><a href="readyz">Is it ready?</a></ul>
</html>
"""
DOCS = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>tcnn: HTTP</title>
<link rel="stylesheet" href="static/swagger-ui.css">
<div id="docs"></div>
<script src="static/swagger-ui-bundle.js"></script>
<script src="static/docs.js"></script>
</html>
"""


@cache
def _vendored() -> Path:
    return Path(str(files("fastapi_offline"))) / "static"


@router.get("/")
async def home() -> HTMLResponse:
    """The way in."""
    return HTMLResponse(HOME, headers=POLICY)


@router.get("/docs")
async def docs() -> HTMLResponse:
    """The OpenAPI document, to read and to try."""
    return HTMLResponse(DOCS, headers=POLICY)


@router.get("/static/{name}")
def static(name: Annotated[str, InPath()]) -> Response:
    """The parts of the page above, and nothing else."""
    if name == "docs.js":
        return Response(_SCRIPT, media_type="text/javascript", headers=POLICY)
    if name not in ("swagger-ui.css", "swagger-ui-bundle.js"):
        raise NotFound("no such page")
    return FileResponse(_vendored() / name, headers={"Cache-Control": "public, max-age=86400"})
