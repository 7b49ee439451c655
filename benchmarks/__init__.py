"""Measurements, each a script (`python -m benchmarks.ROOM.NAME`), and `results/`, what they measured."""
