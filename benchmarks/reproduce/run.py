"""Runs an experiment: every arm with every seed, from one start, on the same batches, and measures them image by image.

    python benchmarks/reproduce/run.py benchmarks/reproduce/experiments/cifar10.yaml --data cifar10/ \
        --weights resnet20-cifar10.safetensors --workers 2 --minutes 9

It can be stopped, killed, and called again at any time: a row that is there is not run again, an arm that was cut off
goes on from its own resume point. A row whose recipe has changed since is run again. Rows and their summary are written
to benchmarks/results/reproduce/NAME.json, and which images were right to NAME.npz beside it, as soon as they are known.
"""

import argparse
import fcntl
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import arms
import torch
from experiment import Experiment, changed, known, load
from job import Job, digest, place, sets
from results import Results

from tcnn.cli.main import fitting
from tcnn.errors import RequestError, Stopped, TcnnError
from tcnn.files import make_directory
from tcnn.processes import die_with_parent, keep_freed_memory

RESULTS = Path(__file__).parents[1] / "results" / "reproduce"
ENDED, STOPPED, INTERRUPTED = 0, Stopped.exit_code, 130
Say = Callable[[str], None]


class Task(NamedTuple):
    """A piece of work for one process."""

    kind: str
    """images, prepare, adapt or arm."""
    arm: str = ""
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.arm}, seed {self.seed}" if self.kind == "arm" else self.kind

    def needs(self, experiment: Experiment) -> list["Task"]:
        """What must be done before."""
        if self.kind == "images":
            return []
        before = [Task("images")]
        if self.kind == "arm":
            if experiment.start_of(self.arm) == "adapted":
                before.append(Task("adapt"))
            if experiment.arms[self.arm].equal_time_to is not None:
                relation, first = experiment.arms[self.arm], experiment.seeds[0]
                before += [Task("arm", str(name), first) for name in (relation.equal_time_to, relation.like)]
        return before

    def perform(self, job: Job, say: Say) -> None:
        """Do it, or go on with it. Raises `TcnnError`, `Stopped` among them."""
        torch.set_num_threads(job.threads)
        job.check_time()
        if self.kind == "images":
            sets(job)
        elif self.kind == "prepare":
            arms.prepare(job)
        elif self.kind == "adapt":
            arms.adapt(job, say)
        else:
            arms.run(job, self.arm, self.seed, say)


def tasks(experiment: Experiment, chosen: Sequence[str], seeds: Sequence[int]) -> list[Task]:
    """All that is to be done, in the order in which it is begun: first every arm with the first seed."""
    wanted = {Task("arm", arm, seed) for arm in chosen for seed in seeds if seed in experiment.seeds_of(arm)}
    missing = [task for one in wanted for task in one.needs(experiment) if task.kind == "arm"]
    listed = [
        Task("arm", a, s) for s in experiment.seeds for a in experiment.arms if Task("arm", a, s) in {*wanted, *missing}
    ]
    adapt = [Task("adapt")] if experiment.adapt is not None else []
    return [Task("images"), *adapt, Task("prepare"), *listed]


def go(job: Job, todo: list[Task], workers: int, results: Results, say: Say = print) -> int:
    """Perform tasks until all are done or have failed, or a stop; the exit status. What fails does not stop others."""
    rows = [task for task in todo if task.kind == "arm"]
    results.keep({(arm, s): digest(job, arm, s) for arm in job.experiment.arms for s in job.experiment.seeds_of(arm)})
    done = {task for task in rows if results.has(task.arm, task.seed, digest(job, task.arm, task.seed))}
    if len(done) == len(rows):
        results.refresh()
        say("every row is there already")
        return ENDED
    failed: dict[Task, int] = {}

    def ended(task: Task, status: int) -> None:
        if status != ENDED:
            failed[task] = status
            return
        done.add(task)
        if task.kind == "arm":
            results.take(place(job, task.arm, task.seed))

    def next_task(running: Collection[Task]) -> Task | None:
        if job.late() or {STOPPED, INTERRUPTED} & set(failed.values()):
            return None
        left = (task for task in todo if task not in done and task not in failed and task not in running)
        return next((task for task in left if done.issuperset(task.needs(job.experiment))), None)

    if workers == 1:
        while task := next_task([]):
            ended(task, perform(job, task, say))
    else:
        in_processes(job, workers, next_task, ended)
    missing = len(rows) - len(done.intersection(rows))
    if not missing:
        say(f"done: {results.file}")
        return ENDED
    say(f"{missing} of {len(rows)} rows are missing; run it again to go on")
    return next((status for status in failed.values() if status != STOPPED), STOPPED)


def in_processes(
    job: Job, workers: int, next_task: Callable[[Collection[Task]], Task | None], ended: Callable[[Task, int], None]
) -> None:
    """Perform tasks side by side until `next_task`, told which are under way, has none and none is under way."""
    running: dict[BaseProcess, Task] = {}
    try:
        while True:
            while len(running) < workers and (task := next_task(list(running.values()))):
                # Before there are arms for all of them, one may have all threads.
                own = job._replace(threads=job.threads * workers) if task.kind == "adapt" else job
                process = multiprocessing.get_context("spawn").Process(target=_child, args=(own, task, os.getpid()))
                process.start()
                running[process] = task
            if not running:
                return
            connection.wait([process.sentinel for process in running])
            for process in [process for process in running if not process.is_alive()]:
                ended(running.pop(process), process.exitcode or ENDED)
    finally:
        for process in running:
            process.terminate()  # they save what they have
        for process in running:
            process.join()


def perform(job: Job, task: Task, say: Say = print) -> int:
    """Do a task; the exit status of what it came to, told in one line."""
    try:
        task.perform(job, lambda line: say(f"{task}: {line}"))
    except TcnnError as error:
        say(f"{task}: {fitting(str(error), ('--weights',))}")
        return error.exit_code
    return ENDED


def _child(job: Job, task: Task, parent: int) -> None:
    """A task in a process of its own, which saves and ends when the parent does, or says so: Ctrl-C is the parent's."""
    os.setsid()
    die_with_parent(signal.SIGTERM, parent)
    keep_freed_memory()
    sys.exit(perform(job, task, lambda line: print(line, flush=True)))


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        experiment = changed(load(options.experiment), options.model, options.settings)
        chosen = [known("--arms", arm, experiment.arms) for arm in options.arms or experiment.arms]
        if options.weights is not None and not options.weights.is_file():
            raise RequestError(f"--weights: {options.weights} is no file")
        if options.weights is not None and not experiment.pretrained:
            raise RequestError("--weights: this experiment begins with random weights; leave it out")
        unknown = set(options.seeds or ()) - set(experiment.seeds)
        if unknown:
            raise RequestError(f"--seeds: {sorted(unknown)} are none of the experiment's {list(experiment.seeds)}")
        work = options.work or Path("runs") / experiment.name
        threads = options.threads or max(1, torch.get_num_threads() // options.workers)
        deadline = time.time() + 60 * options.minutes if options.minutes else float("inf")
        out = options.out or RESULTS / f"{experiment.name}.json"
        job = Job(
            experiment, options.data, options.weights, work, out, device=options.device, loaders=options.loaders,
            threads=threads, cuda_graph=options.cuda_graph, deadline=deadline,
        )  # fmt: skip
        with alone(work):
            results = Results(out, experiment, device=options.device)
            return go(job, tasks(experiment, chosen, options.seeds or experiment.seeds), options.workers, results)
    except TcnnError as error:
        print(f"run: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped; run it again to go on", file=sys.stderr)
        return INTERRUPTED


@contextmanager
def alone(work: Path) -> Iterator[None]:
    """Keep other runners out of a directory: two would train the same arm and write over each other."""
    make_directory(work)
    with (work / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RequestError(f"--work: {work} is in use; wait for the other runner, or choose another") from error
        yield


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path, help="a YAML file, see experiment.py")
    parser.add_argument("--data", required=True, help="a data set with a train and a validation split (docs/data.md)")
    parser.add_argument(
        "--model", help="another network than the file names: a timm name, or one of networks.building.OWN"
    )
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="KEY=VALUE",
        help="another setting of the recipe, as for tcnn finetune; what an arm sets itself stays. With --model and "
        "--set results have a name of their own",
    )  # fmt: skip
    parser.add_argument("--weights", type=Path, help="the network's weights, where timm does not have them")
    parser.add_argument("--workers", type=int, default=1, help="arms that are trained at the same time")
    parser.add_argument("--threads", type=int, help="of each worker; default the cores, shared among them")
    parser.add_argument("--loaders", type=int, default=0, help="processes that load images for each worker")
    parser.add_argument("--minutes", type=float, help="stop in time, to go on when called again")
    parser.add_argument("--arms", nargs="+", metavar="ARM", help="only these")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="SEED", help="only these")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cuda-graph", action="store_true", help="train by CUDA graphs, for small networks on a GPU")
    parser.add_argument("--work", type=Path, help="directory of the runs; default runs/NAME")
    parser.add_argument("--out", type=Path, help="default benchmarks/results/reproduce/NAME.json")
    options = parser.parse_args(arguments)
    if options.workers < 1:
        parser.error("--workers: expected at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
