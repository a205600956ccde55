"""A Kafka client of our own, for the command line and Spark."""
