"""Tools for any model: tracing, running in one dtype, output comparison, random weights."""
