"""Looking inside: what every head attends to, pictures of it, and the page that tells a run's story."""
