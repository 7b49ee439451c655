"""Fine-tuning: the training loop, its recipe, and run directories from which an interrupted run resumes exactly."""
