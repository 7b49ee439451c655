"""One of the processes that share a run, as torchrun starts it: `python -m … EXCHANGE PARENT`."""

import os
import sys
from pathlib import Path

from tcnn.errors import TcnnError
from tcnn.processes import die_with_parent, keep_freed_memory
from tcnn.training.launch.exchange import Exchange


def train(exchange: Exchange) -> int:
    """Do what was ordered; how it ended is in the exchange. Returns the exit code of an error of ours.

    What else goes wrong is raised, and is for whoever started this process to make sense of.
    """
    rank = int(os.environ.get("RANK", "0"))
    order = exchange.order()
    try:
        from tcnn.training.finetune import finetune  # torch is not loaded before the directory has been found

        result = finetune(
            order.model, order.data, order.val, order.config, order.out, resume=order.resume, force=order.force,
            allow_changes=order.allow_changes, pretrained=order.pretrained,
            weights=None if order.weights is None else Path(order.weights), names=order.names,
            report=exchange.report, say=exchange.say, stop=exchange.stop_asked,
        )  # fmt: skip
    except TcnnError as error:
        exchange.fail(error, rank)
        return error.exit_code
    if rank == 0:
        exchange.finish(result)
    return 0


def main(path: Path, parent: int) -> int:
    """End with torchrun, whatever ends it."""
    die_with_parent(parent=parent)
    keep_freed_memory()
    exchange = Exchange(path)
    os.chdir(exchange.order().directory)
    return train(exchange)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
