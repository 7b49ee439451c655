"""The explorer without a server: a static page in which a T-CNN runs and shows what every head attends to."""
