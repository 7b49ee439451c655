"""The durable job queue and its workers. May import tcnn, never tcnn_api."""
