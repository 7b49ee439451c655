"""Run directories: metrics, checkpoints, resume points, progress, and stopping on a signal."""
