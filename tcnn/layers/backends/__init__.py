"""Ways to compute the layer, all of them exact."""
