"""Takes onnxruntime-web, which the explorer's page runs, into tcnn/explorer/runtime.

    python deploy/onnxruntime_web.py 1.30.0

Of the npm package two files are kept as they are: the smallest bundle, for WebAssembly alone, and its binary, which is
compressed. The licence and the notices of what is compiled in are those of the Python package of the same version.
"""

import lzma
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

RUNTIME = Path(__file__).resolve().parents[1] / "tcnn/explorer/runtime"
FILES = {"ort.wasm.bundle.min.mjs": "ort.js", "ort-wasm-simd-threaded.wasm": "ort.wasm"}
NOTICES = ("LICENSE", "ThirdPartyNotices.txt")
PLAIN = (".js", ".txt")
"""Suffixes of what is kept uncompressed."""


def fetch(version: str) -> dict[str, bytes]:
    """The files of a version by their names here; npm compares the package with the registry's digest."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", f"onnxruntime-web@{version}"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        (packed,) = Path(folder).glob("*.tgz")
        with tarfile.open(packed) as archive:
            taken = {ours: archive.extractfile(f"package/dist/{theirs}") for theirs, ours in FILES.items()}
            return {name: file.read() for name, file in taken.items() if file is not None}


def notices(version: str) -> bytes:
    """The licence, and the notices of other people's work in it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"onnxruntime=={version}"]
        subprocess.run(command, cwd=folder, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            texts = [archive.read(f"onnxruntime/{name}") for name in NOTICES]
    return f"ONNX Runtime Web {version}: ort.js and ort.wasm\n\n".encode() + b"\n".join(texts)


def main() -> None:
    version = sys.argv[1]
    files = {**fetch(version), "LICENSES.txt": notices(version)}
    for old in RUNTIME.glob("*"):
        old.unlink()
    for name, content in files.items():
        if Path(name).suffix in PLAIN:
            (RUNTIME / name).write_bytes(content)
        else:
            (RUNTIME / f"{name}.xz").write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
