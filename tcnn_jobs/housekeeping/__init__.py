"""Housekeeping beside the jobs: one worker is elected to send webhooks, keep retention, and remove orphaned files."""
