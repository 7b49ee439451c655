"""A hub of one's own on the loopback: repositories, commits, large files and downloads, by the Hub's routes."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import yaml

LARGE = (".safetensors", ".onnx", ".bin")
TOKEN = "hf_testtoken"


class Hub:
    """The server's state: repositories with their files, commits, and large files by digest."""

    def __init__(self) -> None:
        self.url = ""
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.commits: list[dict[str, Any]] = []
        self.objects: dict[str, bytes] = {}
        self.private: set[str] = set()
        self.refuse: dict[str, int] = {}
        """Status instead of an answer, by a part of the path."""

    def create(self, name: str, private: bool) -> int:
        """Make a repository; 409 if it is there."""
        if name in self.repositories:
            return 409
        self.repositories[name] = {}
        if private:
            self.private.add(name)
        return 200

    def commit(self, name: str, revision: str, lines: list[dict[str, Any]], pull_request: bool) -> dict[str, Any]:
        """Add the files of a commit."""
        files = {}
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.objects[value["oid"]]
        if not pull_request:
            self.repositories[name].update(files)
        summary = lines[0]["value"]["summary"]
        self.commits.append({"repository": name, "revision": revision, "summary": summary, "files": sorted(files)})
        oid = hashlib.sha1(json.dumps(self.commits).encode()).hexdigest()
        made: dict[str, Any] = {"success": True, "commitOid": oid, "commitUrl": f"{self.url}/{name}/commit/{oid}"}
        return made | ({"pullRequestUrl": f"{self.url}/{name}/discussions/1"} if pull_request else {})


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def json(self, status: int, value: object) -> None:
            self.answer(status, json.dumps(value).encode(), Content_Type="application/json")

        def body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def refused(self) -> bool:
            status = next((code for part, code in hub.refuse.items() if part in self.path), None)
            if status is None and self.command == "POST" and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                status = 401
            if status is not None:
                self.body()
                self.json(status, {"error": f"refused with {status}"})
            return status is not None

        def do_POST(self) -> None:
            if self.refused():
                return
            path, _, query = unquote(self.path).partition("?")
            content = self.body()
            if path == "/api/repos/create":
                asked = json.loads(content)
                name = f"{asked.get('organization') or 'me'}/{asked['name']}"
                status = hub.create(name, asked.get("visibility") == "private")
                self.json(status, {"url": f"{hub.url}/{name}"} | ({"error": "it exists"} if status == 409 else {}))
            elif path == "/api/validate-yaml":
                card = json.loads(content)["content"].split("---\n")
                problems = [] if isinstance(yaml.safe_load(card[1]), dict) else [{"message": "no YAML head"}]
                self.json(200 if not problems else 400, {"errors": problems, "warnings": []})
            elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/(.+)", path):
                names = [file["path"] for file in json.loads(content)["files"]]
                files = [
                    {"path": name, "uploadMode": "lfs" if name.endswith(LARGE) else "regular", "shouldIgnore": False,
                     "oid": None}
                    for name in names
                ]  # fmt: skip
                self.json(200 if found[1] in hub.repositories else 404, {"files": files})
            elif path.endswith(".git/info/lfs/objects/batch"):
                objects = [
                    {**each, "actions": {"upload": {"href": f"{hub.url}/lfs/{each['oid']}", "header": {}}}}
                    for each in json.loads(content)["objects"]
                ]
                self.json(200, {"transfer": "basic", "objects": objects})
            elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/(.+)", path):
                lines = [json.loads(line) for line in content.splitlines() if line]
                self.json(200, hub.commit(found[1], found[2], lines, "create_pr=1" in query))
            else:
                self.json(404, {"error": path})

        def do_PUT(self) -> None:
            if self.refused():
                return
            content, oid = self.body(), self.path.rpartition("/")[2]
            if hashlib.sha256(content).hexdigest() != oid:
                self.json(400, {"error": "another digest"})
                return
            hub.objects[oid] = content
            self.answer(200)

        def do_GET(self) -> None:
            found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", unquote(self.path).partition("?")[0])
            content = hub.repositories.get(found[1], {}).get(found[3]) if found else None
            if content is None:
                known = bool(found) and found[1] in hub.repositories  # type: ignore[index]
                self.answer(404, X_Error_Code="EntryNotFound" if known else "RepoNotFound")
                return
            self.answer(200, content, ETag=f'"{hashlib.sha256(content).hexdigest()}"', X_Repo_Commit="0" * 40)

        do_HEAD = do_GET

    return Handler


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub that serves until the end of the block."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
