"""What an uploaded data set looks like: thumbnails, balance of classes and splits, images that cannot be read.

Runs in a process of its own (`tcnn_jobs.confined.process`), where images of strangers are decoded within bounded
memory; torch is not loaded.
"""

import base64
import io
import json
import os
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from tcnn.characters import spellings
from tcnn.data.decode import decode, open_image, reason
from tcnn.errors import TcnnError, shorten
from tcnn_api.uploading.datasets import Listed, listed

MEMORY = 1 << 30
"""Bytes that looking may take: the largest image that PIL opens, twice."""
SECONDS = 120
PATIENCE = 45.0
"""Seconds for which images are opened; of those that are left nothing is said."""
THUMBNAIL = 96
"""Pixels of the longer side."""
SHOWN = 200
"""Images that cannot be read which are told by name."""
GOLDEN = 0.618033988749895


def survey(folder: str) -> dict[str, Any]:
    """Images by class and split, their sizes, and which cannot be read: all of them, or as many as there is time for.

    What is opened, if not all, is spread over the whole set.
    """
    root = Path(folder)
    images = listed(root)
    counts: dict[str, Counter[str]] = {}
    for image in images:
        counts.setdefault(image.label, Counter())[image.split or "all"] += 1
    ends = time.monotonic() + PATIENCE
    checked, sides, formats, unreadable, size = 0, [], Counter[str](), [], 0
    for place in sorted(range(len(images)), key=lambda number: number * GOLDEN % 1):
        if time.monotonic() > ends:
            break
        checked += 1
        path = root / images[place].file
        size += path.stat().st_size
        try:
            with open_image(path) as opened:
                sides.append(opened.size)
                formats[opened.format or "unknown"] += 1
                opened.draft(None, (opened.width // 8, opened.height // 8))  # of JPEG all is read, less is computed
                opened.load()
        except Exception as error:  # a decoder may raise anything
            unreadable.append((place, _why(error)))
    return {
        "classes": [{"name": shown(label), "images": dict(count)} for label, count in counts.items()],
        "images": len(images),
        "checked": checked,
        "unreadable": len(unreadable),
        "unreadable_images": [
            {"file": shown(images[place].file), "reason": why} for place, why in sorted(unreadable)[:SHOWN]
        ],
        "formats": dict(formats.most_common()),
        "width": _spread([width for width, _ in sides]),
        "height": _spread([height for _, height in sides]),
        "mean_bytes": size / checked if checked else None,
    }


def thumbnails(folder: str, wanted: str) -> dict[str, Any]:
    """A page of images, each with a thumbnail or the reason why there is none.

    `wanted`: JSON of `label` and `split`, either of them null for all, `start` and `limit`.
    """
    asked = json.loads(wanted)
    root = Path(folder)
    images = listed(root)
    label = None if asked["label"] is None else _spelt(asked["label"], {shown(image.label) for image in images})
    found = [image for image in images if label in (None, shown(image.label)) and asked["split"] in (None, image.split)]
    page = found[asked["start"] : asked["start"] + asked["limit"]]
    return {
        "data": [_thumbnail(root, image) for image in page],
        "total": len(found),
        "has_more": asked["start"] + len(page) < len(found),
    }


def _spelt(name: str, known: set[str]) -> str:
    """A name as the set spells it, which may have its accents composed or apart; if it has neither, as it is."""
    return next((spelling for spelling in spellings(name) if spelling in known), name)


def _thumbnail(root: Path, image: Listed) -> dict[str, Any]:
    told: dict[str, Any] = {
        "file": shown(image.file), "label": shown(image.label), "split": image.split,
        "width": None, "height": None, "thumbnail": None, "reason": None,
    }  # fmt: skip
    try:
        with open_image(root / image.file) as opened:
            told["width"], told["height"] = opened.size
            opened.draft("RGB", (2 * THUMBNAIL, 2 * THUMBNAIL))
            small = decode(opened, "RGB")
        small.thumbnail((THUMBNAIL, THUMBNAIL))
        out = io.BytesIO()
        small.save(out, "JPEG", quality=80)
        told["thumbnail"] = "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()
    except Exception as error:
        told["reason"] = _why(error)
    return told


def _why(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "too large to be looked at here"
    try:
        return shorten(reason(error), 120)
    except TcnnError as other:  # of this process, not of the image
        return shorten(str(other), 120)


def _spread(values: list[int]) -> dict[str, float] | None:
    return {"least": min(values), "median": median(values), "most": max(values)} if values else None


def shown(name: str) -> str:
    """A file's name as text that can be sent: bytes that are no UTF-8 are marked."""
    return os.fsencode(name).decode("utf-8", "replace")
