"""What the server of these tests allows, and what its refusals look like."""

from typing import Any

import httpx

SMALL = {
    "TCNN_MAX_UPLOAD_GB": "0.03",
    "TCNN_MAX_UNPACKED_GB": "0.2",
    "TCNN_MAX_FILES": "2000",
    "TCNN_API_KEYS": "alice:key-of-alice,bob:key-of-bob",
}


def problem(answer: httpx.Response) -> dict[str, Any]:
    """The body of an RFC 9457 error, which names the field and tells nothing of the server's folders."""
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == answer.status_code
    assert body["detail"]
    assert "\n" not in body["detail"]
    assert "incoming" not in body["detail"]
    if answer.status_code == 422:
        assert [error["field"] for error in body["errors"]] == ["file"]
    return body
