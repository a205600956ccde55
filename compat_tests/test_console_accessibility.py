"""The console for everybody: axe-core finds nothing; names that are scripts are text everywhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compat_tests import confluent_client
from compat_tests.brokers import Broker
from compat_tests.conftest import MakeName, MakeTopic
from compat_tests.console import PHONE, WIDE, Browser

SCRIPT = "<script>document.title='owned'</script>"

pytestmark = pytest.mark.magnetar_only("the pages are the same; more is on magnetar's")


@pytest.fixture
def places(broker: Broker, topic: MakeTopic, name: MakeName) -> Iterator[dict[str, str]]:
    """Give topic, group and transactional id, with hostile names. The transaction and the
    membership stay open for the pages.
    """
    orders, etl, group = topic("orders", **{"retention.ms": "77777"}), SCRIPT + name("etl"), SCRIPT
    producer = confluent_client.producer(broker.bootstrap, transactional_id=etl, client_id=SCRIPT)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(orders, SCRIPT, key=SCRIPT, headers={SCRIPT: SCRIPT})
    producer.flush(30)
    producer.commit_transaction()
    reader = confluent_client.consumer(broker.bootstrap, group, **{"client.id": SCRIPT})
    reader.subscribe([orders])
    assert reader.consume(1, 30)
    reader.commit(asynchronous=False)
    producer.begin_transaction()
    producer.produce(orders, SCRIPT)
    producer.flush(30)
    yield {"topic": orders, "id": etl, "group": group}
    reader.close()
    producer.abort_transaction(30)


def addresses(places: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
    topic, group, etl = {"name": places["topic"]}, {"id": places["group"]}, {"id": places["id"]}
    go = {"go": "1"}
    return [
        ("/transactions", {}),
        ("/transactions/ids", {}),
        ("/transactions/one", etl),
        ("/transactions/abort", etl),
        ("/groups", {}),
        ("/groups/one", group),
        ("/groups/reset", group),
        ("/groups/member", group),
        ("/topics", {}),
        ("/topics/one", topic),
        ("/topics/messages", {**topic, "kind": "all"}),
        ("/topics/message", {**topic, "partition": "0", "offset": "0"}),
        ("/topics/outcomes", topic),
        ("/topics/groups", topic),
        ("/topics/configs", topic),
        ("/topics/produce", topic),
        ("/topics/create", {}),
        ("/topics/delete", topic),
        ("/topics/trim", {**topic, **go, "before": "end"}),
        ("/configs", {}),
        ("/configs/change", {**topic, **go, "type": "topic", "setting": "x", "value": SCRIPT}),
        ("/access", {}),
        ("/access/user", {"name": SCRIPT, **go}),
        ("/access/rule", {"principal": SCRIPT, **go}),
        ("/access/quota", {"user": SCRIPT, "value": "1", "rate": "producer_byte_rate", **go}),
        ("/nodes", {}),
    ]


def test_axe_core_finds_nothing_and_no_name_runs_on_any_page(
    browser: Browser, places: dict[str, str]
) -> None:
    found = {}
    for path, query in addresses(places):
        browser.size(*WIDE)
        browser.go(path, **query)
        wrong = browser.violations()
        browser.size(*PHONE)
        browser.script("document.documentElement.dataset.theme = 'dark'")
        wrong += browser.violations("color-contrast")
        if browser.overflow():
            wrong.append("a phone has to be scrolled aside")
        if wrong:
            found[path] = wrong
        assert browser.title != "owned", path
    assert found == {}
    # A refusal in a form has a status of its own, which the browser notes; nothing else is noted.
    assert [each for each in browser.complaints() if "Failed to load resource" not in each] == []
