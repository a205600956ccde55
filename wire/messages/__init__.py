"""The public messages of the Kafka protocol: one module per API, named after it."""
