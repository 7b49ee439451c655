"""Planning: what a fine-tuning run takes in memory, time and disk, computed and measured before it begins."""
