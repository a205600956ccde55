"""Pipelines in PySpark on a broker of their own, each with one make target and a check at its end.

They use what any user has: Spark's Kafka connector, the data source `magnetar`, confluent-kafka,
`magnetar.testing` for the broker. README.md shows what they print.
"""
