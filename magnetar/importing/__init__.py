"""Adopting the topics of a stopped Apache Kafka: `magnetar import`.

`source` reads its data directory, `metadata_log` what its cluster knew of topics, and `scan` the
logs. `plan` decides what is imported and what is refused; `staging` copies the files and puts them
in place; `run` does all of it.
"""
