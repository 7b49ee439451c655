"""The test of chaos runs the very code of the benchmark, which is a script beside the package, not a part of it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
