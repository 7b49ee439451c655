"""A client of the HTTP service."""

from tcnn_jobs.client.client import Client as Client
