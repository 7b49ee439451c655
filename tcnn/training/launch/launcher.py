"""A run whose work several processes share, started from one that takes no part in it and tells how it goes.

    finetune_on(Placement(num_workers=2), "resnetrs50", "imagenet/", config=config, out="runs/rs50")

On this host torchrun starts them, without restarts of its own: after one process was killed the others can wait for it
forever. Whoever calls this may begin again; the run goes on from its newest resume point.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from tcnn.config import FinetuneConfig
from tcnn.config.placement import Placement, uneven
from tcnn.errors import EnvironmentFailure, RequestError, TcnnError
from tcnn.training.finetune import FinetuneResult, finetune
from tcnn.training.launch.exchange import Exchange, Order, Say
from tcnn.training.runs.progress import Report
from tcnn.training.runs.signals import StopRequest, stop_on_signal

TICK = 0.1
"""Seconds between two looks at the processes."""


def finetune_on(
    placement: Placement,
    model: str,
    data: str,
    val: str | None = None,
    config: FinetuneConfig | None = None,
    out: str | Path = "run",
    *,
    resume: bool = False,
    force: bool = False,
    allow_changes: bool = False,
    pretrained: bool = True,
    weights: Path | None = None,
    names: Mapping[str, str] | None = None,
    report: Report = lambda progress: None,
    say: Say = lambda message: None,
    log: IO[bytes] | None = None,
) -> FinetuneResult:
    """`finetune`, by as many processes as `placement` says, where it says.

    Args:
        model, data, val, …: as for `finetune`, but by name: other processes open them.
        log: what the processes print goes there; default a file beside the run, `.NAME.ranks/log.txt`.

    Raises what `finetune` raises; `RequestError` for a batch that cannot be shared; `EnvironmentFailure` if a process
    ends without a word, or the cluster cannot be used.
    """
    settings = config or FinetuneConfig()
    wrong = uneven(settings, placement.num_workers)
    if wrong is not None:
        raise RequestError(wrong)
    if placement.engine == "local" and placement.num_workers == 1:
        return finetune(
            model, data, val, settings, out, resume=resume, force=force, allow_changes=allow_changes,
            pretrained=pretrained, weights=weights, names=names, report=report, say=say,
        )  # fmt: skip
    order = Order(
        model=model, data=data, val=val, config=settings, out=str(out), directory=str(Path.cwd()), resume=resume,
        force=force, allow_changes=allow_changes, pretrained=pretrained,
        weights=None if weights is None else str(weights), names=dict(names or {}),
    )  # fmt: skip
    exchange = Exchange((Path(out).parent / f".{Path(out).name}.ranks").absolute())
    exchange.open(order)
    with stop_on_signal() as stop:
        try:
            _start(exchange, placement, stop, report, say, log)
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
    exchange: Exchange, placement: Placement, stop: StopRequest, report: Report, say: Say, log: IO[bytes] | None
) -> None:
    """Come back when no process of the run is left."""
    if placement.engine == "ray":
        from tcnn.training.launch.on_ray import run_on_ray  # an optional extra

        run_on_ray(exchange, placement, stop, report, say, echo=log is not None)
    elif log is None:
        with exchange.log.open("wb") as own:
            _torchrun(exchange, placement, stop, report, say, own)
    else:
        _torchrun(exchange, placement, stop, report, say, log)


def _torchrun(
    exchange: Exchange, placement: Placement, stop: StopRequest, report: Report, say: Say, log: IO[bytes]
) -> None:
    """Start the processes on this host, and wait until the last has ended."""
    # A session of its own: Ctrl-C is for this process, which passes it on once; twice would end them at once.
    agent = subprocess.Popen(  # noqa: S603 - no word of it comes from a request
        [
            sys.executable, "-m", "tcnn.training.launch.agent", str(exchange.path), str(placement.num_workers),
            str(os.getpid()),
        ],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip
    try:
        asked = False
        while agent.poll() is None:
            exchange.relay(report, say)
            if stop and not asked:
                asked = True
                agent.send_signal(signal.SIGTERM)
            time.sleep(TICK)
        exchange.relay(report, say)
    finally:
        agent.kill()
        agent.wait()
