"""Bytes <-> typed messages and record batches of the Kafka protocol. No I/O, no clock."""
