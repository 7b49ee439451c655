"""Pictures of what is measured, one file each; every function returns a matplotlib figure and opens no window."""
