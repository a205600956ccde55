"""A broker with faults, for tests: `magnetar serve` with other parts, and a door to them.

`magnetar.testing` starts it as `python -m magnetar.faults` and talks to it through a pair of
sockets that it inherits. Nothing else imports this package (import-linter checks that), so a broker
that `magnetar serve` starts has no fault in it, no flag and no door:
docs/decisions/0040-faults-are-composed.md.

    rules      what a fault is, and which request it meets: pure
    named      which topics, groups and transactional ids a request names
    shared     the faults of several nodes, counted over all of them
    names      APIs, error codes and crash points by their names
    handlers   faults around the handlers of the APIs that they are for, while there are any
    points     the moments in which a broker can be made to crash
    disk       a sync that fails, a disk that is full
    hurrying   time that moves, transactions and members that expire, producers that are fenced
    recording  what clients have asked
    releases   the APIs of earlier releases of Kafka
    door       calls from the tests, as JSON
    composing  all of it put around a `Broker`
"""
