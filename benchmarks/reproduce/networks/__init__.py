"""The networks of experiments: small ones with published weights, and how each of them is built."""
