"""From the body of a POST to a job's request: read by itself, resolved, checked, kept."""
