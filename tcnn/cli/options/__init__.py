"""What all commands do with options: groups in `--help`, examples, other spellings, refusal of those without effect."""
