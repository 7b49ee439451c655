"""Writes the OpenAPI document: ``python -m tcnn_api.document docs/openapi.json``; a test keeps it true."""

import json
import sys
from pathlib import Path

from tcnn.files import write_atomically
from tcnn_api.app import create_app


def main(path: Path) -> None:
    """Write the document."""
    text = json.dumps(create_app().openapi(), indent=2, ensure_ascii=False)
    write_atomically(path, text + "\n", force=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
