"""`tcnn demo`: the whole journey on images that need no download."""
