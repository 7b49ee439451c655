"""What strangers upload: received, unpacked, examined."""
