"""`python -m tcnn` is the `tcnn` command: for `torchrun -m tcnn` and environments without their scripts on the path."""

from tcnn.cli.main import main

main()
