"""torchrun that ends with its parent: `python -m tcnn.training.launch.agent EXCHANGE N PARENT`; it loads no model."""

import os
import sys

from tcnn.processes import die_with_parent


def main(exchange: str, num_workers: str, parent: str) -> None:
    """Start N processes by torchrun; all end when one dies or this process ends."""
    die_with_parent(parent=int(parent))
    from torch.distributed.run import main as torchrun  # no second is lost in which nobody would end this

    torchrun([
        "--standalone", "--max-restarts=0", f"--nproc-per-node={num_workers}",
        f"--log-dir={exchange}/torchrun",  # it would be a directory in /tmp that nobody removes
        "-m", "tcnn.training.launch.rank", exchange, str(os.getpid()),
    ])  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
