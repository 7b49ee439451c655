"""Everything that wants a GPU, in one go: the tests marked `gpu`, and what the layer and whole networks cost there.

    make gpu                # on a machine with a GPU and torch >= 2.8, with or without a network
    make gpu DEVICE=cpu     # a dry run at tiny sizes: all that can be seen to work without one
    make gpu OUT=directory  # results elsewhere

It takes nine minutes at most, the tests first. Every part is a process of its own; one that fails or hangs does not
hold up the others, and its end is in the table. Run again, it goes on: parts that are done are left out while sources,
versions and hardware are the same. Results are `benchmarks/results/gpu/PART.json` and the tables in `README.md` beside
them, which fill docs/speed.md, too; those of a dry run are in `build/gpu`. Nothing sets the GPU's clocks.

Exit status: 0 all parts are done; 1 one failed; 2 nothing could be run; 3 some are still to be run.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks import reporting
from benchmarks.parts import DONE, FAILED, Facts, Outcome, Part, run_all, sources, told, write

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "speed.md"
KEPT, DRY = ROOT / "benchmarks" / "results" / "gpu", ROOT / "build" / "gpu"
SECONDS = 9 * 60.0
SOURCES = (
    "tcnn/**/*.py",
    *(f"benchmarks/{room}*.py" for room in ("", "layer/", "models/")),
    "tests/conftest.py",
    "tests/helpers/*.py",
    "tests/gpu/*.py",
)

PROBE = """
import json, torch
from torch.cuda import get_device_properties, is_available
found = {"torch_cuda": torch.version.cuda, "gpu": None}
if is_available():
    gpu = get_device_properties(0)
    found["gpu"] = {
        "name": gpu.name, "capability": f"{gpu.major}.{gpu.minor}", "multiprocessors": gpu.multi_processor_count,
        "memory_gib": round(gpu.total_memory / 2**30, 1), "cudnn": torch.backends.cudnn.version(),
    }
print(json.dumps(found))
"""


def tests(path: Path) -> dict[str, Any]:
    """How many tests passed, and why the others did not, from pytest's JUnit file."""
    cases = ElementTree.parse(path).getroot().findall(".//testcase")
    skipped: dict[str, int] = {}
    failed = []
    for case in cases:
        if (why := case.find("skipped")) is not None:
            skipped[why.get("message", "")] = skipped.get(why.get("message", ""), 0) + 1
        elif case.find("failure") is not None or case.find("error") is not None:
            failed.append(case.get("name"))
    if not cases:
        raise ValueError("no test was found")
    return {"passed": len(cases) - len(failed) - sum(skipped.values()), "failed": failed, "skipped": skipped}


def parts(device: str) -> list[Part]:
    """What is run, the most valuable first; on a CPU everything is tiny."""
    dry = device == "cpu"

    def tested(*names: str) -> Part:
        files = [f"tests/gpu/test_{name}.py" for name in names]
        return Part("tests", ("-m", "benchmarks.gpu_tests", *files, "--out", "{out}"), 200, ("pytest",), tests)

    def script(name: str, file: str, limit: float, *options: str) -> Part:
        arguments = ("-m", f"benchmarks.{file}", "--device", device, *options, "--out", "{out}")
        return Part(name, (*arguments, *(("--threads", "1") if dry else ())), limit)

    def layer(shape: str) -> Part:
        rounds = ("--rounds", "1" if dry else "9")
        return script(f"layer_{shape}", "layer.gpsa", 60, "--measure", "times", "--shape", shape, *rounds)

    def networks(group: str, limit: float, *options: str) -> Part:
        small = ("--base", "test_resnet", "--size", "64", "--batch", "1", "--rounds", "1")
        common = small if dry else ("--batch", "128", "--rounds", "9")
        ways = [way for way in ("graphs", "transparent") if f"--{way}" in options]
        name = "_".join([f"networks_{group}", *(["compiled"] if options else []), *ways])
        return script(name, "models.throughput", limit, "--groups", group, *common, *options)

    def training_loop() -> Part:
        tiny = "--model test_resnet --size 32 --batch-size 8 --micro-batch 4 --images 40 --workers 1 --pairs 1"
        large = "--model resnet50 --size 160 --batch-size 64 --micro-batch 64 --images 3840 --pairs 4"
        workers = f" --workers {min(12, os.cpu_count() or 1)}"
        return script("training_loop", "models.train_overhead", 120, *(tiny if dry else large + workers).split())

    compiled = ("--compile", "aot_eager" if dry else "inductor")  # a C++ compiler would take minutes
    memory = "72x8x2" if dry else "512x32x16"
    return [
        tested("layer", "kernels", "materialised", "execution", "training"),
        *(() if dry else (networks("stride-removed", 240, *compiled, "--graphs"),)),
        networks("stride-removed", 240, *compiled),
        *(() if dry else (networks("stride-removed", 240, *compiled, "--transparent"),)),
        *(layer(shape) for shape in (("72x6x2",) if dry else ("512x14x256", "512x7x256", "512x32x16", "512x14x32"))),
        networks("stride-removed", 60),
        networks("stride-kept", 60),
        script("memory", "layer.gpsa", 90, "--measure", "memory", "growth", "--memory-shape", memory),
        networks("botnet", 60),
        networks("convit", 60),
        training_loop(),
        *(() if dry else (networks("botnet", 240, *compiled), networks("convit", 240, *compiled))),
    ]


def unmet() -> list[str]:
    """What tcnn needs and this Python has not, or too old: "pydantic>=2.10 (none here)"."""
    found = []
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]:
        name, _, least = line.partition(">=")
        try:
            here = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{line} (none here)")
            continue
        if _numbers(here) < _numbers(least):
            found.append(f"{line} ({here} here)")
    return found


def _numbers(version: str) -> tuple[int, ...]:
    """2.11.0+cu130 → (2, 11, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))


def facts(device: str) -> Facts:
    """What the results depend on; raises `SystemExit` where torch has no such device."""
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(_refused(f"torch cannot be loaded: {done.stderr.strip().splitlines()[-1]}"))
    found = json.loads(done.stdout)
    if device == "cuda" and found["gpu"] is None:
        raise SystemExit(_refused("torch sees no GPU; for a dry run without one: make gpu DEVICE=cpu"))
    return {
        "device": device, "gpu": found["gpu"] if device == "cuda" else None, "cpus": os.cpu_count(),
        "sources": sources(ROOT, SOURCES), "python": sys.version.split()[0], "cuda": found["torch_cuda"],
        "versions": {name: _version(name) for name in ("torch", "timm", "triton")},
    }  # fmt: skip


def _refused(why: str) -> int:
    print(f"gpu: {why}", file=sys.stderr)
    return 2


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def report(outcomes: Sequence[Outcome], facts: Facts) -> str:
    """The tables, in Markdown; of a part that was not run or failed, how it ended."""
    results = {outcome.part: outcome.result for outcome in outcomes if outcome.status == DONE}
    gpu, versions = facts["gpu"], facts["versions"]
    where = "A dry run at tiny sizes on a CPU, whose times mean nothing" if gpu is None else (
        f"{gpu['name']} ({gpu['memory_gib']:.0f} GiB, compute capability {gpu['capability']}), CUDA {facts['cuda']}, "
        "clocks as they were"
    )  # fmt: skip
    text = [f"{where}; torch {versions['torch']}, timm {versions['timm']}, Triton {versions['triton'] or 'missing'}."]
    best = [result for result in results.values() if "bytes_per_second" in (result or {})]
    if best:
        products = max(result["multiply_adds_per_second"] for result in best)
        copies = max(result["bytes_per_second"] for result in best)
        text.append(
            f"The best large matrix product of these runs reached {2 * products / 1e12:.3g} TFLOP/s, the best copy "
            f"{copies / 1e9:.4g} GB/s, read and written."
        )
    rows = {kind: _rows(results, kind) for kind in ("layer_", "networks_")}
    if rows["layer_"]:
        text.append(reporting.layers({"rows": rows["layer_"]}).strip())
    if rows["networks_"]:
        text.append(reporting.networks_of_a_gpu(rows["networks_"]).strip())
    if "memory" in results:
        memory = results["memory"]
        channels, side, batch = memory["memory_shape"].values()
        held = ", ".join(f"{name} {mib:.0f}" for name, mib in memory["memory_mib"].items())
        text.append(
            f"MiB that forward and backward hold ({channels} channels, {side}×{side}, batch {batch}): {held}. With "
            f"`window:14` a 64×64 map takes {memory['growth_32_to_64']['forward']:.1f} times as long as a 32×32 one, "
            f"forward, and {memory['growth_32_to_64']['forward and backward']:.1f} times forward and backward."
        )
    if "training_loop" in results:
        loop = results["training_loop"]
        text.append(
            f"`tcnn.finetune` of {loop['model']} at {loop['size']} pixels: {loop['images_per_second']['tcnn']:.0f} "
            f"images/s, {100 * loop['overhead']:+.1f} % beside a bare loop; a resume point takes "
            f"{loop['resume_point_seconds']:.2f} s."
        )
    text.append("\n".join(["| part | | seconds |", "|---|---|---|", *map(_part_line, outcomes)]))
    return "\n\n".join(text) + "\n"


def _rows(results: dict[str, Any], prefix: str) -> list[dict[str, Any]]:
    return [row for name, result in results.items() if name.startswith(prefix) for row in result["rows"]]


def _part_line(outcome: Outcome) -> str:
    what = outcome.status
    if outcome.part == "tests" and outcome.result:
        skipped = sum(outcome.result["skipped"].values())
        what += f", {outcome.result['passed']} passed, {len(outcome.result['failed'])} failed, {skipped} skipped"
    elif outcome.reason:
        what += f": {outcome.reason}"
    return f"| {outcome.part} | {what.replace('|', '/')} | {outcome.seconds:.0f} |"


def show(page: Path, text: str) -> None:
    """Put what was measured between the page's marks, `<!-- gpu -->` and `<!-- /gpu -->`."""
    before = page.read_text(encoding="utf-8")
    head, _, rest = before.partition("<!-- gpu -->\n")
    _, end, tail = rest.partition("<!-- /gpu -->")
    write(page, f"{head}<!-- gpu -->\n{text}{end}{tail}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all parts together")
    parser.add_argument("--can-run", action="store_true", help="only say whether this Python has what tcnn needs")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    absent = unmet()
    if absent:
        return _refused(f"{sys.executable} lacks {', '.join(absent)}")
    if options.can_run:
        return 0
    found = facts(options.device)
    out = (options.out or (KEPT if options.device == "cuda" else DRY)).resolve()
    ways = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        "PYTHONPATH": os.pathsep.join(ways), "TCNN_GPU_DEVICE": options.device, "PYTHONUNBUFFERED": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # whatever else the machine has installed
        # What was compiled before a part was cut off need not be compiled again.
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(ROOT / "build" / "inductor")),
    }  # fmt: skip
    os.chdir(ROOT)
    try:
        outcomes = run_all(
            parts(options.device), out, found, seconds=end - time.monotonic(), environment=environment,
            missing=lambda name: importlib.util.find_spec(name) is None, say=lambda line: print(line, flush=True),
        )  # fmt: skip
    except KeyboardInterrupt:
        return _refused("interrupted; what is done is kept, run it again to go on")
    text = report(outcomes, found)
    write(out / "README.md", text)
    if options.device == "cuda" and not options.out:
        show(PAGE, text)
    print(f"\n{text}\n{out / 'README.md'}")
    failed = [outcome for outcome in outcomes if outcome.status == FAILED]
    unfinished = [outcome for outcome in outcomes if outcome.status not in (DONE, FAILED)]
    for outcome in (*failed, *unfinished):
        print(f"gpu: {outcome.part} {told(outcome)}; {out / (outcome.part + '.json')}", file=sys.stderr)
    return 1 if failed else 3 if unfinished else 0


if __name__ == "__main__":
    sys.exit(main())
