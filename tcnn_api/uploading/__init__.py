"""Uploads from untrusted clients: received, unpacked, examined."""
