"""Adopting the topics of a stopped Apache Kafka: `magnetar import`.

`source` says what lies in its data directory, `metadata_log` what its cluster knew of topics,
`scan` what the logs hold, `plan` what is to be imported and what is refused, `staging` copies and
puts in place.
"""
