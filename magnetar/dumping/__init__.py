"""Reading a stopped broker's files, magnetar's or Apache Kafka's, for a person: `magnetar dump`.

`segments` reads batches and records, `indexes` and `small_files` what lies beside them, `internal`
says what the records of internal topics mean, `directory` which files there are.
"""
