"""Real clients over TCP against a running broker: magnetar, and Apache Kafka as the reference.

The broker is started by its command line. Of magnetar nothing is imported but what users import:
`magnetar.spark`, for the tests of its sink.
"""
