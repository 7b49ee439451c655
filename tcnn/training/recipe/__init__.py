"""How a model learns: parameter groups, annealing, what is minimised."""
