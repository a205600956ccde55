"""The crash matrix of the exactly-once sink.

This package plays Spark's part. Each call of the sink is a process of its own, as in Spark. Each of
these processes, and the broker, can be killed at any step of the protocol. `nursery` makes the
processes, `roles` has what each does, `query` is Spark's driver, `run` disturbs and judges.
"""
