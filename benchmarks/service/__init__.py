"""The service: killed at random, under load, and its pages in a browser with many jobs."""
