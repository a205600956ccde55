"""Takes the pictures of docs/console.md: `python -m compat_tests.console_pictures DIRECTORY`.

Starts a broker and a console, makes a small shop with transactions in every state, and looks at it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import Consumer, Producer
from PIL import Image

from compat_tests.admin import create_topic
from compat_tests.brokers import make_broker
from compat_tests.console import PHONE, WIDE, Browser, console

#: The chart needs some samples, which are 5 s apart.
_SAMPLES_S = 40
_HEIGHT_MAX = 1150
_COLOURS = 128
_ITEMS = ("apple", "pear", "plum")


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as data:
        broker = make_broker("magnetar", Path(data))
        broker.start()
        try:
            with console(broker.bootstrap) as address:
                kept = shop(broker.bootstrap)
                time.sleep(_SAMPLES_S)  # The console takes samples of lag meanwhile.
                take(address, directory)
                del kept
        finally:
            broker.kill()


def take(address: str, directory: Path) -> None:
    browser = Browser()
    try:
        browser.visit(address)
        for name, path, size, theme in (
            ("transactions", "/transactions", WIDE, "light"),
            ("group", "/groups/one?id=shipping", WIDE, "dark"),
            ("messages", "/topics/messages?name=orders&partition=0&kind=all", WIDE, "light"),
            ("phone", "/transactions", PHONE, "dark"),
            ("change", "/groups/reset?id=reports&to=shift&value=-20&go=1", WIDE, "light"),
        ):
            browser.size(*size)
            browser.script(f"document.cookie = 'magnetar-theme={theme}; path=/'")
            browser.go(path)
            # The live page has morphed once, and the chart is drawn.
            time.sleep(3)  # Live parts and drawings come after the page.
            picture = directory / f"console-{name}.png"
            browser.picture(picture, _HEIGHT_MAX)
            with Image.open(picture) as image:
                image.convert("RGB").quantize(_COLOURS).save(picture, optimize=True)
    finally:
        browser.close()


def shop(bootstrap: str) -> list[Producer | Consumer]:
    """Return clients with open transactions, and a member that waits for one."""
    for topic, partitions in (("orders", 3), ("payments", 2), ("report", 1)):
        create_topic(bootstrap, topic, partitions, {})
    plain = Producer({"bootstrap.servers": bootstrap})
    for number in range(60):
        order = {"order": number, "item": _ITEMS[number % 3], "price": number * 1.25}
        plain.produce("orders", json.dumps(order), key=f"customer-{number % 7}", partition=0)
    plain.flush()
    kept: list[Producer | Consumer] = []
    begin(bootstrap, "etl-1", "orders", 4).commit_transaction()
    begin(bootstrap, "etl-2", "orders", 3).abort_transaction()
    reader(bootstrap, "reports").close()
    kept.append(reader(bootstrap, "shipping"))
    kept.append(begin(bootstrap, "orders-etl-3", "orders", 5))
    kept.append(begin(bootstrap, "billing-7", "payments", 4))
    for number in range(6):
        plain.produce("orders", json.dumps({"order": 60 + number}), partition=0)
    plain.flush()
    for number in range(5):
        worker = begin(bootstrap, f"nightly~>{number}", "report", 3)
        if number < 3:
            worker.commit_transaction()
        kept.append(worker)
    return kept


def begin(bootstrap: str, transactional_id: str, topic: str, count: int) -> Producer:
    settings = {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": 600_000,
        "client.id": transactional_id.split("~")[0],
    }
    producer = Producer(settings | {"bootstrap.servers": bootstrap})
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(count):
        value = json.dumps({"by": transactional_id, "n": number})
        producer.produce(topic, value, key=f"customer-{number}", partition=0)
    producer.flush()
    return producer


def reader(bootstrap: str, group: str) -> Consumer:
    """Return a member of this group that has read and committed everything."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    consumer.consume(64, 20)
    consumer.commit(asynchronous=False)
    return consumer


if __name__ == "__main__":
    main()
