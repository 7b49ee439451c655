"""`tcnn demo`: conversion, verification and fine-tuning on images that need no download."""
