"""What `magnetar.testing` costs a test run: a broker, a topic, a fault, a snapshot.

    python -m benchmarks.testing_library

Prints the rows of the table in docs/testing_your_application.md: medians, in ms. Run it on a
machine that does nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from magnetar.testing import Broker, start_broker

_BROKERS = 7
_TIMES = 50


def main() -> None:
    starts = [_start() for _ in range(_BROKERS)]
    # The first one reads the files of the package.
    print(f"| a broker, ready for clients | {median(starts[1:]):.0f} |")
    with start_broker() as broker:
        _row("a topic", broker.topic)
        _row("a fault, armed and taken away", lambda: broker.delay("EndTxn", seconds=1).remove())
        topic = broker.topic()
        _row("what a topic holds", lambda: broker.records(topic))
        snapshot = broker.snapshot()
        _row("a snapshot of a running broker", broker.snapshot)
        _row("a snapshot copied back", lambda: snapshot.copy_to(broker.data_dir.parent / "copy"))
        _row("a kill, and a start on the same data", lambda: _restart(broker), times=5)
        # The faults have met nothing, which would be an error.
        broker.reset()


def _start() -> float:
    began = time.perf_counter()
    with start_broker():
        return (time.perf_counter() - began) * 1000


def _restart(broker: Broker) -> None:
    broker.kill()
    broker.start()


def _row(what: str, do: Callable[[], object], times: int = _TIMES) -> None:
    durations = []
    for _ in range(times):
        began = time.perf_counter()
        do()
        durations.append((time.perf_counter() - began) * 1000)
    print(f"| {what} | {median(durations):.1f} |")


if __name__ == "__main__":
    main()
