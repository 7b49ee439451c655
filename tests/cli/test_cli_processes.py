"""`tcnn` as a process: interrupted at any moment, on a disk that fills up, without a network, where the locale knows
ASCII alone.

Whatever happens, the output is whole or absent, and nothing else is left behind.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
from data_pictures import draw_classes
from forked import Ended, run_tcnn

import tcnn as library

Run = Callable[..., Any]
Limit = Callable[[int], AbstractContextManager[None]]
needs_proc = pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="NOT TESTED: signals at chosen moments, for lack of /proc"
)
CONVERT = ("convert", "test_resnet", "out.safetensors", "--no-pretrained")


def kill(pid: int, number: signal.Signals) -> None:
    """Send a signal, unless the process is done already."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def was_interrupted(
    ended: Ended, number: signal.Signals, cwd: Path, output: str, existing: bytes | None = None
) -> bool:
    """Whether it was interrupted before the file got its name; everything is as it was then, else the file is whole."""
    assert "Traceback" not in ended.stderr, ended.stderr
    path = cwd / output
    before = [] if existing is None else [output]
    if ended.left != before or (existing is not None and path.read_bytes() != existing):
        assert ended.left == [output]
        library.load(path)
        assert ended.code in (0, 128 + number, -number), "minus: it was done, and Python had given the handler up"
        return False
    assert ended.code == 128 + number, ended
    if number == signal.SIGINT:
        assert ended.stderr == "interrupted\n"
    return True


@pytest.mark.parametrize(
    ("number", "existing", "parts"),
    [
        pytest.param(signal.SIGINT, b"an older file", 1, id="Ctrl-C-forced, once"),
        pytest.param(signal.SIGTERM, None, 4, id="SIGTERM-new", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, b"an older file", 4, id="Ctrl-C-forced", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, None, 4, id="Ctrl-C-new", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, b"an older file", 4, id="SIGTERM-forced", marks=pytest.mark.slow),
    ],
)
def test_a_signal_at_any_moment_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals, existing: bytes | None, parts: int
) -> None:
    whole = run_tcnn(tmp_path / "whole", *CONVERT)
    assert (whole.code, whole.stderr, whole.left) == (0, "", ["out.safetensors"])
    draw = random.Random(f"{number} {existing}")
    interrupted = 0
    for part in range(parts):
        cwd = tmp_path / str(part)
        cwd.mkdir()
        if existing is not None:
            (cwd / "out.safetensors").write_bytes(existing)
        delay = (part + draw.random()) / parts * whole.seconds

        def disturb(pid: int, delay: float = delay) -> None:
            time.sleep(delay)
            kill(pid, number)

        ended = run_tcnn(cwd, *CONVERT, "--force", disturb=disturb)
        interrupted += was_interrupted(ended, number, cwd, "out.safetensors", existing)
    assert interrupted, "the delays were drawn within the time of an undisturbed run"


@pytest.mark.parametrize(
    ("output", "number"),
    [
        pytest.param("out", signal.SIGINT, id="out-Ctrl-C", marks=pytest.mark.slow),
        pytest.param("out.safetensors", signal.SIGTERM, id="out.safetensors-SIGTERM"),
        pytest.param("out", signal.SIGTERM, id="out-SIGTERM", marks=pytest.mark.slow),
        pytest.param("out.safetensors", signal.SIGINT, id="out.safetensors-Ctrl-C", marks=pytest.mark.slow),
    ],
)
@needs_proc
def test_a_signal_while_the_file_is_written_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals, output: str
) -> None:
    """The signal comes the moment that the temporary file appears, while it is written or read back."""

    def interrupted(cwd: Path) -> bool:
        def disturb(pid: int) -> None:
            while Path(f"/proc/{pid}").exists() and not any(name.endswith(".tmp") for name in os.listdir(cwd)):  # noqa: PTH208
                pass
            kill(pid, number)

        ended = run_tcnn(cwd, "convert", "test_resnet", output, "--no-pretrained", disturb=disturb)
        return was_interrupted(ended, number, cwd, output)

    tries = (tmp_path / str(attempt) for attempt in range(5))  # a busy machine may look too late
    assert any(map(interrupted, tries)), "the process was always faster than the signal"


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, id="Ctrl-C"),
        pytest.param(signal.SIGTERM, id="SIGTERM", marks=pytest.mark.slow),
    ],
)
@needs_proc
def test_a_signal_while_torch_is_imported(tmp_path: Path, number: signal.Signals) -> None:
    """A process of its own, from the console script on; a shell may have told its children to ignore Ctrl-C."""
    script = Path(sys.executable).with_name("tcnn")
    prelude = (
        "import runpy, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", prelude, script, *CONVERT],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    maps = Path(f"/proc/{process.pid}/maps")
    while process.poll() is None and "libtorch_cpu" not in maps.read_text():
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 128 + number, err
    assert out == ""
    assert err == ("interrupted\n" if number == signal.SIGINT else "")
    assert list(tmp_path.iterdir()) == []


class TestAFullDisk:
    @pytest.mark.parametrize(
        ("output", "size"),
        [
            ("out.safetensors", 100_000), ("out", 2_000_000),
            *(
                pytest.param(*case, marks=pytest.mark.slow)
                for case in (("out.safetensors", 1), ("out.safetensors", 2_000_000), ("out", 1), ("out", 100_000))
            ),
        ],
    )  # fmt: skip
    def test_half_way_leaves_nothing_behind(
        self, tcnn: Run, listing: Callable[[], list[str]], file_size_limit: Limit, output: str, size: int
    ) -> None:
        with file_size_limit(size):
            error = tcnn("convert", "test_resnet", output, "--no-pretrained").error(4)
        assert error.startswith(f"{output}: no space left while writing")
        assert listing() == []

    @pytest.mark.parametrize(
        "output", ["out.safetensors", pytest.param("out/model.safetensors", marks=pytest.mark.slow)]
    )
    def test_keeps_the_file_that_was_to_be_replaced(
        self, tcnn: Run, tmp_path: Path, file_size_limit: Limit, output: str
    ) -> None:
        path = tmp_path / output
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
        with file_size_limit(500_000):
            tcnn("convert", "test_resnet", output.partition("/")[0], "--no-pretrained", "--force").error(4)
        assert path.read_text() == "mine"
        assert [file.name for file in path.parent.iterdir()] == [path.name]

    @pytest.mark.slow
    def test_of_a_real_file_system(self, tcnn: Run, tmp_path: Path) -> None:
        disk = tmp_path / "disk"
        disk.mkdir()
        mount = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
        )
        if mount.returncode:
            pytest.skip(f"NOT TESTED: a file system without space, for lack of the right to mount one ({mount.stderr})")
        try:
            error = tcnn("convert", "test_resnet", disk / "out.safetensors", "--no-pretrained").error(4)
            assert "no space left" in error
            assert list(disk.iterdir()) == []
        finally:
            subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow  # in a Python of its own; the fixture `no_network` asks the same of every command
def test_no_network_is_answered_at_once(tmp_path: Path) -> None:
    """The hub's name never resolves (RFC 6761) and the cache is empty; the hub's own client would try for a minute."""
    unwanted = ("http_proxy", "https_proxy", "all_proxy", "hf_hub_offline")
    kept = {name: value for name, value in os.environ.items() if name.lower() not in unwanted}
    environment = kept | {"HF_ENDPOINT": "https://tcnn.invalid", "HF_HOME": str(tmp_path / "cache")}
    script = (
        "import time, sys, timm, tcnn.workflows.pipeline\n"
        "from tcnn.cli.main import main\n"
        "started = time.monotonic()\n"
        "try:\n"
        "    main(['convert', 'resnet18', 'out.safetensors'])\n"
        "finally:\n"
        "    print(time.monotonic() - started)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert done.stderr.startswith("error: resnet18: the pretrained weights could not be downloaded")
    assert all(word in done.stderr for word in ("--weights", "--no-pretrained", "HF_HOME"))
    assert done.stderr.count("\n") == 1
    assert float(done.stdout) < 15, "building the model takes a second; one retry of every request takes half a minute"
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.slow
def test_a_pipe_that_closes_early_is_no_error() -> None:
    """`tcnn models | head -1`."""
    process = subprocess.Popen(
        [sys.executable, "-c", "from tcnn.cli.main import main; main()", "models"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.wait(timeout=300)


LINES = """
finetune test_resnet --no-pretrained --data p --val-split 0.25 --preset quick --epochs 1 --batch-size 4 --size 32 \
--device cpu --workers 0 --out run
evaluate run --json --per-class
evaluate run --csv e.csv
evaluate run --data q --examples 2 --json
predict run p --csv p.csv
predict run p --json
inspect run --images p --json
report run
fold run f.safetensors
push run a/b --dry-run
convert test_resnet t.safetensors --no-pretrained
verify t.safetensors
models resnet18
"""
SCRIPT = """
import sys
from tcnn.cli.main import main
for line in sys.argv[1].strip().splitlines():
    try:
        main(line.split())
    except SystemExit as ended:
        print(line.split()[0], ended.code, file=sys.stderr)
"""


@pytest.mark.slow
def test_every_command_runs_under_an_ascii_locale(tmp_path: Path) -> None:
    for folder, count in (("p", 4), ("q", 2)):
        draw_classes(tmp_path / folder, ["größe", "b", "naïve"], count)
    (tmp_path / "q" / "größe" / "torn.png").write_bytes(b"no picture")
    environment = {
        **os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, LINES], cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    ends = [line for line in done.stderr.decode().splitlines() if line.split()[-1].isdigit() and len(line.split()) == 2]
    assert ends == [f"{line.split()[0]} 0" for line in LINES.strip().splitlines()], done.stderr.decode()
    assert "größe" in (tmp_path / "p.csv").read_text(encoding="utf-8")
    assert '"gr\\u00f6\\u00dfe"' in done.stdout.decode(), "JSON loses nothing"
