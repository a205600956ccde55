"""Requests about a hundred thousand transactional ids: other clients are served in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from coordinator.transactions.metadata import TransactionMetadata
from magnetar.runtime.transactions import Transactions
from tests.magnetar.conftest import RawClient
from wire.messages import describe_transactions, init_producer_id, list_transactions


async def test_many_transactional_ids_are_found_and_listed_in_turns(
    client: RawClient, given_up: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at, up_to_date = [], Transactions.up_to_date

    def noted(
        self: Transactions, found: Iterable[TransactionMetadata]
    ) -> Iterator[TransactionMetadata]:
        looked_at.append(len(together := list(found)))
        return up_to_date(self, together)

    monkeypatch.setattr(Transactions, "up_to_date", noted)
    request = init_producer_id.InitProducerIdRequest(
        transactional_id="a", transaction_timeout_ms=1_000
    )
    while (await client.ask(request, 4, init_producer_id.InitProducerIdResponse)).error_code:
        pass
    count = 1_100
    for number in range(count):
        client.send(
            init_producer_id.InitProducerIdRequest(
                transactional_id=str(number), transaction_timeout_ms=1_000
            ),
            4,
        )
    for _ in range(count):
        await client.receive()
    given_up.clear()
    listed = await client.ask(
        list_transactions.ListTransactionsRequest(),
        1,
        list_transactions.ListTransactionsResponse,
    )
    assert len(listed.transaction_states) == count + 1
    # Pieces of 256: to choose among them, and to tell of them.
    assert len(given_up) >= 4
    assert sum(looked_at) == count + 1
    assert max(looked_at) <= 256
    given_up.clear()
    found = await client.ask(
        list_transactions.ListTransactionsRequest(transactional_id_pattern="[^a]+"),
        2,
        list_transactions.ListTransactionsResponse,
    )
    assert len(found.transaction_states) == count
    # Of those that are found, the pattern's texts and what matches too.
    assert len(given_up) >= 12
    given_up.clear()
    unknown = describe_transactions.DescribeTransactionsRequest(
        transactional_ids=["a", *map(str, range(count, 4 * count))]
    )
    described = await client.ask(unknown, 0, describe_transactions.DescribeTransactionsResponse)
    assert [each.error_code for each in described.transaction_states][:2] == [0, 105]
    # Pieces of 1,024 ids.
    assert given_up
