"""Animates where the heads of an attentional network looked in a run.

python -m benchmarks.drawing.moving_centres runs/cordonnier_quadratic_tiny centres.gif
"""

import argparse
from pathlib import Path

from tcnn.analysis.plots.centres import animate
from tcnn.training.runs.rundir import RunDirectory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the directory of a run: runs/cordonnier_quadratic_tiny")
    parser.add_argument("out", type=Path, help="a .gif file, which is replaced")
    options = parser.parse_args()
    print(animate(RunDirectory(options.run).rows("epoch"), options.out, force=True))


if __name__ == "__main__":
    main()
