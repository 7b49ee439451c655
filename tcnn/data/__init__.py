"""Images and their classes: data sets by timm's names, the order of the data, and loaders without state."""
