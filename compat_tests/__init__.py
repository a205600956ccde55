"""Real clients over TCP against a running broker: magnetar, and Apache Kafka as the reference.

The broker is started by its command line. Of magnetar nothing is imported but what users import,
`magnetar.spark` and `magnetar.testing`, and the data source where `sink_crashes` plays Spark.
"""
