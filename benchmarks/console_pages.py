"""How long the console's pages take on a broker with many topics and groups.

    python -m benchmarks.console_pages [--topics 1000] [--groups 100] [--rounds 20]

Starts a broker and a console, makes the topics (one partition each), the groups (each committed in
ten topics) and a few open transactions, and asks each page as a browser does, one after the other.
The first round, which compiles messages and templates, is left out. Prints milliseconds, by the
clock and of processor time: console and broker work one after the other, so the sum of both is what
a page takes where nothing else runs.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from magnetar.client import Client
from magnetar.client.batching import ProducerRecord
from magnetar.client.group_offsets import commit_offsets
from magnetar.client.producer import Producer
from magnetar.client.topics import create_topic
from magnetar.testing import start_broker

MAGNETAR = Path(sys.executable).with_name("magnetar")
TOPICS_OF_A_GROUP = 10
OPEN_TRANSACTIONS = 10
RECORDS = 20
PAGES = {
    "transactions": "/transactions",
    "all transactional ids": "/transactions/ids",
    "groups": "/groups",
    "one group": "/groups/one?id=group-000",
    "topics": "/topics",
    "one topic": "/topics/one?name=topic-0000",
    "messages": "/topics/messages?name=topic-0000",
    "aborted and open": "/topics/outcomes?name=topic-0000",
    "groups of a topic": "/topics/groups?name=topic-0000",
    "configs": "/configs",
    "access": "/access",
    "nodes": "/nodes",
    "delete a topic": "/topics/delete?name=topic-0000",
    "move offsets of a group": "/groups/reset?id=group-000&to=latest&go=1",
    "change a setting": (
        "/configs/change?go=1&type=topic&name=topic-0000&setting=retention.ms&value=1"
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with start_broker() as broker:
        fill(broker.bootstrap_servers, options.topics, options.groups)
        with console(broker.bootstrap_servers) as (address, console_pid):
            print(f"{'page':24}{'median':>8}{'worst':>8}{'console':>9}{'broker':>8}")
            for name, path in PAGES.items():
                ask(address + path)
                before = processor_ms(console_pid), processor_ms(broker.pid)
                taken = sorted(ask(address + path) for _ in range(options.rounds))
                spent = [
                    (now - then) / options.rounds
                    for now, then in zip(
                        (processor_ms(console_pid), processor_ms(broker.pid)), before, strict=True
                    )
                ]
                median = statistics.median(taken)
                print(f"{name:24}{median:8.1f}{taken[-1]:8.1f}{spent[0]:9.1f}{spent[1]:8.1f}")


def fill(bootstrap: str, topics: int, groups: int) -> None:
    names = [f"topic-{number:04}" for number in range(topics)]

    def make(part: list[str]) -> None:
        with Client(bootstrap) as client:
            for name in part:
                create_topic(client, name, partitions=1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make, (names[start::4] for start in range(4))))
    with Client(bootstrap) as client:
        for name in names[:TOPICS_OF_A_GROUP]:
            producer = Producer(client, name)
            producer.open()
            producer.send([ProducerRecord(None, b"value")] * RECORDS)
        for number in range(groups):
            group_id = f"group-{number:03}"
            first = number % max(topics - TOPICS_OF_A_GROUP, 1)
            offsets = {(name, 0): 0 for name in names[first : first + TOPICS_OF_A_GROUP]}
            commit_offsets(client, client.group_coordinator_of(group_id), group_id, offsets)
        for number in range(OPEN_TRANSACTIONS):
            producer = Producer(client, names[number], transactional_id=f"open-{number}")
            producer.open()
            producer.send([ProducerRecord(None, b"value")])


@contextmanager
def console(bootstrap: str) -> Iterator[tuple[str, int]]:
    process = subprocess.Popen(
        [MAGNETAR, "console", "--bootstrap", bootstrap, "--listen", "127.0.0.1:0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        found = re.search(r"ready on (http://[^/]+)/", process.stderr.readline())
        assert found is not None, "the console did not start"
        yield found[1], process.pid
    finally:
        process.terminate()
        process.wait()
        process.stderr.close()


def processor_ms(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def ask(url: str) -> float:
    begin = time.perf_counter()
    with urlopen(url) as response:
        response.read()
    return (time.perf_counter() - begin) * 1000


if __name__ == "__main__":
    main()
