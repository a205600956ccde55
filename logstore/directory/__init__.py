"""A data directory: the logs in it, opened and closed together."""
