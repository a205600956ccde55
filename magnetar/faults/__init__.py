"""A broker that fails on demand, for tests: `magnetar serve` with faults around its parts.

`magnetar.testing` starts this broker as `python -m magnetar.faults`. The broker inherits a pair of
sockets, through which a test orders faults (`door`). Nothing else imports this package, and
import-linter checks that. So `magnetar serve` contains no fault, no flag for one and no door. See
docs/decisions/0040-faults-are-composed.md.

    rules      what a fault is, and which requests a fault applies to: pure
    named      which topics, groups and transactional ids a request names
    shared     the faults of several nodes, counted over all of them
    names      APIs, error codes and crash points by their names
    handlers   the handlers of the APIs, wrapped while a fault is set for them
    points     the moments at which a test can make the broker crash
    disk       a sync that fails, a disk that is full
    hurrying   moves the clock, expires transactions and members, fences producers
    recording  what clients have asked
    releases   the APIs of earlier releases of Kafka
    door       reads the tests' calls, as JSON
    composing  puts all of these around a `Broker`
"""
