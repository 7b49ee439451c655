"""Every model of timm: converted and verified, refused with the reason, failed, or too large to run.

    python -m benchmarks.zoo.sweep                      everything that results/zoo.csv does not have yet
    python -m benchmarks.zoo.sweep --shard 2/4          every fourth model, beginning with the second
    python -m benchmarks.zoo.sweep --only 'resnet*'     some models
    python -m benchmarks.zoo.sweep --redo failed        the failed ones again
    python -m benchmarks.zoo.sweep --summary            docs/zoo.md from the rows that are there

Each model is checked by a child process under a time and a memory limit, so that no model can end the run. A row is
written as soon as it is known; the last row of a model is the one that counts.
"""

import argparse
import csv
import json
import multiprocessing
import os
import platform
import resource
import signal
import sys
import threading
import time
import warnings
from collections import defaultdict
from itertools import zip_longest
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, Queue

import timm
from timm.models import model_entrypoint

from benchmarks.reporting import processor
from benchmarks.zoo.check import FAILED, NOT_RUN, Row, check, family_of
from benchmarks.zoo.summary import summarise

RESULTS = Path(__file__).parents[1] / "results" / "zoo.csv"
PAGE = Path(__file__).parents[2] / "docs" / "zoo.md"
MODELS_PER_CHILD = 40
"""A fresh child now and then gives back what allocators and caches keep."""


def main() -> None:
    options = parse()
    if options.summary:
        tidy(options.csv)
        summarise(read(options.csv).values(), options.csv.with_suffix(".json"), PAGE)
    else:
        run(options)


def run(options: argparse.Namespace) -> None:
    """Check what is pending, with `options.workers` children at a time."""
    names = pending(options)
    print(f"{len(names)} models to do", flush=True)
    describe_machine(options.csv.with_suffix(".json"))
    queue: Queue[str] = Queue()
    for name in names:
        queue.put(name)
    writer = Writer(options.csv, len(names))
    workers = [
        threading.Thread(target=work, args=(queue, writer, options), daemon=True) for _ in range(options.workers)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        while worker.is_alive():
            worker.join(0.5)


def pending(options: argparse.Namespace) -> list[str]:
    """The names to do: one of each family first, then the second of each, and so on."""
    families = defaultdict(list)
    for name in timm.list_models(options.only or ""):
        if model_entrypoint(name).__module__.startswith("timm."):  # importing tcnn registers converted models
            families[family_of(name)].append(name)
    names = [name for group in zip_longest(*families.values()) for name in group if name]
    which, count = (int(part) for part in options.shard.split("/"))
    names = names[which - 1 :: count]
    rows = read(options.csv)
    again = set(options.redo.split(",")) if options.redo else set()
    return [
        name
        for name in names
        if name not in rows
        or (rows[name].tcnn, rows[name].timm) != (Row._field_defaults["tcnn"], Row._field_defaults["timm"])
        or rows[name].status in again
        or "all" in again
    ]


def read(path: Path) -> dict[str, Row]:
    """The last row of every model."""
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {line["name"]: Row(**line) for line in csv.DictReader(file)}


def describe_machine(path: Path) -> None:
    """Leave beside the rows what they were measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    facts = {
        "processor": processor(),
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()}, Python {platform.python_version()}",
    }
    path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def tidy(path: Path) -> None:
    """Sort the rows by name and keep the last of each."""
    rows = sorted(read(path).values())
    part = path.with_suffix(".part")
    with part.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([Row._fields, *rows])
    part.replace(path)


class Writer:
    """Appends rows to the file, each in one write, and says what happened."""

    def __init__(self, path: Path, total: int) -> None:
        self.path, self.total, self.done = path, total, 0
        self.lock = threading.Lock()
        self.start = time.perf_counter()
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, row: Row) -> None:
        with self.lock, self.path.open("a", newline="", encoding="utf-8") as file:
            lines = [row] if file.tell() else [Row._fields, row]
            csv.writer(file, lineterminator="\n").writerows(lines)
            self.done += 1
            minutes = (time.perf_counter() - self.start) / 60
            error = f" {row.error32} {row.error64} drift {row.drift}" if row.error32 else ""
            print(
                f"[{self.done}/{self.total} {minutes:.0f} min] {row.name}: {row.status}{error} {row.reason[:160]} "
                f"({row.seconds} s)",
                flush=True,
            )


def work(queue: "Queue[str]", writer: Writer, options: argparse.Namespace) -> None:
    """Feed one child after the other until the queue is empty."""
    child = None
    try:
        while True:
            try:
                name = queue.get_nowait()
            except Empty:
                return
            if child is None or child.served >= MODELS_PER_CHILD:
                if child is not None:
                    child.stop()
                child = Child(options)
            row = child.check(name, options.timeout)
            if not child.process.is_alive():
                child = None
            writer.write(row)
    finally:
        if child is not None:
            child.stop()


class Child:
    """A process that checks models one by one, under the memory limit."""

    def __init__(self, options: argparse.Namespace) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        arguments = (other, options.threads, options.memory)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        other.close()
        self.served = 0
        try:
            self.pipe.recv()
        except EOFError:
            raise RuntimeError("the child process did not start; its error is above") from None

    def check(self, name: str, timeout: float) -> Row:
        """The row of one model; a child that overruns its time, or dies, yields a row too."""
        self.served += 1
        self.pipe.send(name)
        start = time.perf_counter()
        try:
            if self.pipe.poll(timeout):
                return Row(*self.pipe.recv())
            reason = f"too large: not done after {timeout:.0f} s"
            self.stop()
        except EOFError:
            self.process.join()
            reason = _cause_of_death(self.process.exitcode)
        status = FAILED if reason.startswith("the process") else NOT_RUN
        return Row(name, family_of(name), status, reason, seconds=f"{time.perf_counter() - start:.1f}")

    def stop(self) -> None:
        self.process.kill()
        self.process.join()


def _cause_of_death(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return "too large: the system killed the process, which it does when memory runs out"
    return f"the process ended with {signal.Signals(-code).name if code and code < 0 else f'exit code {code}'}"


def _serve(pipe: Connection, threads: int, memory: float) -> None:
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    # Above what `check` plans for: this is the net under an estimate that was too low.
    limit = int((memory + 4) * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    pipe.send("ready")
    while True:
        try:
            name = pipe.recv()
        except (EOFError, BrokenPipeError):
            return
        pipe.send(tuple(check(name, memory)))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, default=RESULTS, help="where the rows go")
    parser.add_argument("--only", metavar="GLOB", help="names to do, as in timm.list_models")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="the I-th of N parts")
    parser.add_argument("--redo", default="", metavar="STATUS,…", help="do rows of this status again, or all")
    parser.add_argument("--workers", type=int, default=1, help="child processes at a time")
    parser.add_argument("--threads", type=int, default=1, help="threads of each child")
    parser.add_argument("--memory", type=float, default=8.0, metavar="GIB", help="memory limit of each child")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="time limit of each model")
    parser.add_argument("--summary", action="store_true", help="write docs/zoo.md instead")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
