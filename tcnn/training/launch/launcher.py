"""Launch a fine-tuning run in several processes and relay its progress.

    request = RunRequest(model="resnetrs50", data="imagenet/", config=config, out="runs/rs50")
    finetune_on(Placement(num_workers=2), request)

On this host torchrun starts them, without restarts of its own: after one process was killed the others can wait for it
forever. The caller may start again; the run is resumed from its newest resume point.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from tcnn.errors import EnvironmentFailure, RequestError, TcnnError
from tcnn.files import removed_if_ended
from tcnn.starting import last_deeds
from tcnn.training.launch.exchange import Exchange, Placement, RunRequest, batch_size_problem
from tcnn.training.launch.rank import finetune_request
from tcnn.training.runs.callbacks import Callbacks, StopRequest, stop_on_signal
from tcnn.training.single_run import FinetuneResult

POLL_SECONDS = 0.1
"""Seconds between two polls of the processes."""


def finetune_on(
    placement: Placement, request: RunRequest, callbacks: Callbacks | None = None, log: IO[bytes] | None = None
) -> FinetuneResult:
    """Fine-tune in as many processes as `placement` says, on this host or a Ray cluster; as `finetune`.

    Args:
        callbacks: `report` and `say`; `stop` is not used here: a signal stops the run.
        log: receives the output of the processes; default a file beside the run, `.NAME.ranks/log.txt`.

    Raises what `finetune` raises; `RequestError` for a batch size that cannot be divided; `EnvironmentFailure` if a
    process ends without an error message, or the cluster cannot be used.
    """
    callbacks = callbacks or Callbacks()
    problem = batch_size_problem(request.config, placement.num_workers)
    if problem is not None:
        raise RequestError(problem)
    if placement.engine == "local" and placement.num_workers == 1:
        return finetune_request(request, callbacks)
    out = Path(request.out)
    exchange = Exchange((out.parent / f".{out.name}.ranks").absolute())
    exchange.open(request.model_copy(update={"directory": str(Path.cwd())}))
    with removed_if_ended(exchange.path), stop_on_signal() as stop:
        try:
            _start(exchange, placement, stop, callbacks, log)
        except TcnnError:
            shutil.rmtree(exchange.path, ignore_errors=True)
            raise
    result, error = exchange.result(), exchange.error()
    if result is None and error is None and not stop:
        raise EnvironmentFailure(
            f"one of the {placement.num_workers} training processes ended without a word, as it does when memory runs "
            f"out; go on with --resume; {exchange.log if log is None else 'the log'} says more"
        )
    shutil.rmtree(exchange.path, ignore_errors=True)
    if result is not None:
        return FinetuneResult.model_validate(result)
    if error is not None and not stop:
        raise error
    raise stop.stopped(str(error) if error else "stopped before the first step; go on with --resume")


def _start(
    exchange: Exchange, placement: Placement, stop: StopRequest, callbacks: Callbacks, log: IO[bytes] | None
) -> None:
    """Run the processes and return when all have ended."""
    if placement.engine == "ray":
        from tcnn.training.launch.on_ray import run_on_ray  # an optional extra

        run_on_ray(exchange, placement, stop, callbacks, echo=log is not None)
    elif log is None:
        with exchange.log.open("wb") as own:
            _torchrun(exchange, placement, stop, callbacks, own)
    else:
        _torchrun(exchange, placement, stop, callbacks, log)


def _torchrun(
    exchange: Exchange, placement: Placement, stop: StopRequest, callbacks: Callbacks, log: IO[bytes]
) -> None:
    """Run the processes on this host by torchrun and return when all have ended."""
    # A session of its own: Ctrl-C is for this process, which passes it on once; twice would end them at once.
    agent = subprocess.Popen(  # noqa: S603 - no word of it comes from a request
        [
            sys.executable, "-m", "tcnn.training.launch.agent", str(exchange.path), str(placement.num_workers),
            str(os.getpid()),
        ],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip
    last_deeds.insert(0, agent.kill)  # before what it writes into is removed
    try:
        asked = False
        while agent.poll() is None:
            exchange.relay(callbacks)
            if stop and not asked:
                asked = True
                agent.send_signal(signal.SIGTERM)
            time.sleep(POLL_SECONDS)
        exchange.relay(callbacks)
    finally:
        last_deeds.remove(agent.kill)
        agent.kill()
        agent.wait()
