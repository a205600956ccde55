"""magnetar: a broker that speaks Kafka's protocol; composes wire, logstore and coordinator."""

__version__ = "0.1.0"
