"""The queue and the service: killed at random, under load, with long queues, and simulated with large fleets."""
