"""Files, their descriptors and formats, and when they go."""
