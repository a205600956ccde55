"""What the broker keeps: topics, the catalog, the logs."""
