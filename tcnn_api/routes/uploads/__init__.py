"""Routes of uploads: data sets, checkpoints and weights."""
