"""Spark beside magnetar: what its Kafka connector needs."""
