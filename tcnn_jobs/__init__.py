"""The durable queue and its workers. May import tcnn, never api."""
