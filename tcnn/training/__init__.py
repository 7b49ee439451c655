"""Fine-tuning: from a model and a data set to a run that survives a kill at any moment."""
