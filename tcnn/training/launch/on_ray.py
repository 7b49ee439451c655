"""Launch a run on a Ray cluster, which restarts its processes from the last resume point when one dies.

The run's directory must be on storage that every node sees at the same path: the processes write it, and the launcher
reads progress from it. So Ray keeps no checkpoints of its own, and a restart resumes as `--resume` does. Only this file
imports Ray, which is an optional extra.
"""

import contextlib
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tcnn.errors import EnvironmentFailure, one_line
from tcnn.training.launch.exchange import REQUEST, Exchange, Placement
from tcnn.training.launch.rank import train
from tcnn.training.runs.callbacks import SIGNALS, Callbacks, Progress, StopRequest

POLL_SECONDS = 0.2
"""Seconds between two polls of the exchange."""
GRACE_SECONDS = 10.0
"""Seconds that the other processes have to end when one has ended with an error."""
PACKAGES = ("tcnn", "torch", "timm")
"""Packages whose versions must be equal on every node."""


def run_on_ray(
    exchange: Exchange, placement: Placement, stop: StopRequest, callbacks: Callbacks, *, echo: bool
) -> None:
    """Run the request of an exchange on a Ray cluster and return when all its processes have ended.

    Args:
        echo: whether the output of the processes is printed here.

    Raises `EnvironmentFailure` if there is no cluster, a node differs from this host, or Ray gives up.
    """
    try:
        import ray
    except ImportError as error:
        raise EnvironmentFailure("engine ray: Ray is not installed: pip install 'tcnn[ray]'") from error
    config = exchange.request().config
    with _connection(ray, str(placement.address), echo):
        _check_nodes(ray, exchange)
        device = config.device
        unit = "GPU" if device != "cpu" and (device != "auto" or ray.cluster_resources().get("GPU")) else "CPU"

        def waiting(why: str) -> None:
            callbacks.say(f"waiting: {why}")
            callbacks.report(Progress(phase="waiting", epoch=0, epochs=config.epochs, step=0, steps=0, percent=0.0))

        for why in _wait_for_resources(ray, unit, placement.num_workers):
            if stop:
                return
            if why:
                waiting(why)
        _run_trainer(ray, exchange, placement, unit == "GPU", stop, callbacks)


@contextlib.contextmanager
def _connection(ray: Any, address: str, echo: bool) -> Iterator[None]:
    """Context in which this process is a driver of the cluster; at its end the processes end, too."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise EnvironmentFailure(
            f"{address}: no Ray cluster answers ({one_line(error)}); start one with ray start, or give another address"
        ) from error
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        ray.init(address=address, log_to_driver=echo, logging_level="warning", configure_logging=echo)
    except Exception as error:  # Ray has many ways to say no
        raise EnvironmentFailure(
            f"{address}: no Ray cluster that this host belongs to ({one_line(error)}); run ray start on this host, and "
            "give it the same RAY_AUTH_MODE and token"
        ) from error
    finally:
        for number, handler in handlers.items():  # Ray ends the process; ours saves first
            signal.signal(number, handler)
    try:
        yield
    finally:
        ray.shutdown()


def _check_nodes(ray: Any, exchange: Exchange) -> None:
    """Raise `EnvironmentFailure` unless every node has this host's versions and sees the run's directory."""
    own = {name: version(name) for name in PACKAGES}

    def look(file: str, packages: tuple[str, ...]) -> tuple[dict[str, str | None], bool]:
        from importlib.metadata import PackageNotFoundError, version
        from pathlib import Path

        found: dict[str, str | None] = {}
        for name in packages:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                found[name] = None
        return found, Path(file).is_file()

    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    looks = [
        ray.remote(look)
        .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        .remote(str(exchange.path / REQUEST), PACKAGES)
        for node in nodes
    ]
    try:
        answers = ray.get(looks, timeout=120)
    except Exception as error:
        raise EnvironmentFailure(f"a node of the Ray cluster does not answer ({one_line(error)})") from error
    for name, (found, seen) in zip(nodes.values(), answers, strict=True):
        for package in PACKAGES:
            if found[package] != own[package]:
                raise EnvironmentFailure(
                    f"node {name}: expected {package} {own[package]}, as here, found {found[package] or 'none'}; "
                    "install the same version on every node"
                )
        if not seen:
            raise EnvironmentFailure(
                f"node {name}: does not see {exchange.path.parent}; the run must lie on storage that all nodes share"
            )


def _wait_for_resources(ray: Any, unit: str, count: int) -> Iterator[str | None]:
    """Wait for free resources: yields why the processes cannot start yet, each reason once and None between.

    A cluster may grow, so one that is too small now is waited for.
    """
    told = None
    while True:
        there, free = (
            int(resources.get(unit, 0)) for resources in (ray.cluster_resources(), ray.available_resources())
        )
        if free >= count:
            return
        why = f"{count} {unit}s are needed, the Ray cluster has {there}"
        why += f", {free} of them free" if there >= count else ""
        yield None if why == told else why
        told = why
        time.sleep(1)


def _run_trainer(
    ray: Any, exchange: Exchange, placement: Placement, use_gpu: bool, stop: StopRequest, callbacks: Callbacks
) -> None:
    """Run Ray's training loop in a thread and relay progress and stop requests meanwhile."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    trainer = TorchTrainer(
        _train_process,
        train_loop_config={"exchange": str(exchange.path)},
        scaling_config=ScalingConfig(num_workers=placement.num_workers, use_gpu=use_gpu),
        run_config=RunConfig(
            name=f"tcnn-{uuid.uuid4().hex[:12]}", storage_path=str(exchange.path / "ray"),
            failure_config=FailureConfig(max_failures=placement.max_failures),
        ),
    )  # fmt: skip
    failure: list[Exception] = []

    def fit() -> None:
        try:
            trainer.fit()
        except Exception as error:  # told below, unless the run has said itself how it ended
            failure.append(error)

    thread = threading.Thread(target=fit, name="ray-train", daemon=True)
    thread.start()
    deadline = float("inf")
    while thread.is_alive() and time.monotonic() < deadline:
        exchange.relay(callbacks)
        if stop:
            exchange.ask_to_stop()
            deadline = min(deadline, time.monotonic() + 0.8 * placement.grace)  # who has asked kills when it is over
        elif exchange.error() is not None:
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)  # the others may wait for the one that has ended
        thread.join(POLL_SECONDS)
    exchange.relay(callbacks)
    if failure and exchange.result() is None and exchange.error() is None and not stop:
        raise EnvironmentFailure(
            f"the Ray cluster gave up after {placement.max_failures} restarts ({one_line(failure[0])}); "
            "go on with --resume"
        )


def _train_process(config: dict[str, str]) -> None:
    """One process of the run, on some node. A `TcnnError` is in the exchange and not raised: Ray must not retry it."""
    exchange = Exchange(Path(config["exchange"]))
    os.chdir(exchange.request().directory)
    train(exchange)
