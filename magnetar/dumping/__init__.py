"""A stopped broker's files, magnetar's or Apache Kafka's, made readable: `magnetar dump`.

`directory` finds the files. `segments` reads batches and records, `internal` decodes the records of
internal topics, `indexes` and `small_files` read the other files. Each yields an `Entry` per line.
"""
