"""Run the `tcnn` command by `python -m tcnn`, as `torchrun -m tcnn` does, or without scripts on the path."""

from tcnn.cli.main import main

main()
