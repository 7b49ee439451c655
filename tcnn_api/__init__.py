"""The HTTP service. May import tcnn_jobs and tcnn; nothing imports it."""
