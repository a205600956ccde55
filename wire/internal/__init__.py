"""What Kafka writes into internal topics, control records and opaque bytes fields, by kind."""
