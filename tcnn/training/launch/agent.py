"""torchrun, which ends with its parent: `python -m tcnn.training.launch.agent EXCHANGE N PARENT`. It knows no model."""

import os
import sys

from tcnn.processes import die_with_parent


def main(exchange: str, num_workers: str, parent: str) -> None:
    """Start the processes, and end all of them when one dies; they in turn end with this one."""
    die_with_parent(parent=int(parent))
    from torch.distributed.run import main as torchrun  # no second is lost in which nobody would end this

    torchrun([
        "--standalone", "--max-restarts=0", f"--nproc-per-node={num_workers}", "-m", "tcnn.training.launch.rank",
        exchange, str(os.getpid()),
    ])  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
