"""Real clients over TCP against a running broker: magnetar, and Apache Kafka as the reference.

Nothing of magnetar is imported: the broker is started by its command line.
"""
