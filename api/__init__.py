"""The HTTP service. May import jobs and tcnn; nothing imports it."""
