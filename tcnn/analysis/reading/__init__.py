"""Read what runs and commands have written (run directories, evaluations, checkpoints), without torch."""
