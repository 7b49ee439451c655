"""The OpenAPI document: what FastAPI makes of the routes, with every error that each can answer with.

``python -m api.openapi FILE`` writes it (docs/openapi.json, kept true by a test).
"""

import json
import sys
from pathlib import Path

from fastapi import FastAPI

from tcnn.files import replacing


def install(app: FastAPI) -> None:
    """Nothing yet."""


if __name__ == "__main__":
    from api.app import create_app

    text = json.dumps(create_app().openapi(), indent=2, ensure_ascii=False)
    with replacing(Path(sys.argv[1]), force=True) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
