"""Convert a CNN into a T-CNN: plan the replacements, apply them, report them."""
