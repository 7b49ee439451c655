"""Terms of the GPSA formula: parameters, positional attention, content attention and its scope, matrix products."""
