"""Training recipe: parameter groups, schedules, annealing of τ, losses, matching, freezing, late conversion."""
