"""One process of a run, as torchrun starts it: `python -m tcnn.training.launch.rank EXCHANGE PARENT`."""

import os
import sys
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from tcnn.errors import TcnnError
from tcnn.processes import die_with_parent, keep_freed_memory, loading
from tcnn.training.launch.exchange import Exchange, RunRequest
from tcnn.training.runs.callbacks import Callbacks
from tcnn.zoo.own_network import network_named

if TYPE_CHECKING:
    from tcnn.training.single_run import FinetuneResult


def finetune_request(request: RunRequest, callbacks: Callbacks) -> "FinetuneResult":
    """Call `finetune` with the arguments of a request."""
    with loading():
        from tcnn.training.finetune import finetune  # torch is not loaded before the exchange has been read

    with ExitStack() as context:
        if request.module is not None:
            context.enter_context(redirect_stdout(sys.stderr))  # what its code prints is no result
            context.enter_context(network_named(request.module))
        return finetune(
            request.model, request.data, request.val, request.config, request.out, resume=request.resume,
            force=request.force, allow_changes=request.allow_changes, pretrained=request.pretrained,
            weights=None if request.weights is None else Path(request.weights), names=request.names,
            baseline=request.baseline, compare=request.compare,
            report=callbacks.report, say=callbacks.say, stop=callbacks.stop,
            **{name: getattr(request.config, name) for name in request.given},
        )  # fmt: skip


def train(exchange: Exchange) -> int:
    """Fine-tune as the exchange requests and write the result or a `TcnnError` to it; returns the exit code.

    Other exceptions are raised, for torchrun or Ray to handle.
    """
    rank = int(os.environ.get("RANK", "0"))
    try:
        result = finetune_request(exchange.request(), Callbacks(exchange.report, exchange.say, exchange.stop_asked))
    except TcnnError as error:
        exchange.fail(error, rank)
        return error.exit_code
    if rank == 0:
        exchange.finish(result)
    return 0


def main(path: Path, parent: int) -> int:
    """Run one process that ends when torchrun ends, for any reason."""
    die_with_parent(parent=parent)
    keep_freed_memory()
    exchange = Exchange(path)
    os.chdir(exchange.request().directory)
    return train(exchange)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
