"""The queue alone: what its calls cost on SQLite and PostgreSQL, long queues, and its simulation with large fleets."""
