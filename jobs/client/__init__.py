"""A client of the HTTP service."""

from jobs.client.client import Client as Client
