"""Where images come from: class folders, tar archives, shards on the disk or remote, Hugging Face, torchvision."""
