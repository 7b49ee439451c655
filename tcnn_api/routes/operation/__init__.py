"""Routes for whoever runs the service: health, metrics, workers, audit, and the pages themselves."""
