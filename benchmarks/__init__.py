"""Measurements, each beside Apache Kafka or a known library, in one run on one machine."""
