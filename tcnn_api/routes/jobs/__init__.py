"""Routes of one job and of lists of jobs: what it is, what it made, what its model says."""
