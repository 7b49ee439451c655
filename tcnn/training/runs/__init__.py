"""What a run leaves behind and says of itself, and how it is stopped."""
