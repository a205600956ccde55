"""What the client and the broker have to agree on, though neither imports the other."""

from __future__ import annotations

import coordinator.groups.offsets.store
from coordinator.transactions import metadata
from coordinator.transactions.metadata import TxnId
from magnetar.client.transactions import OPEN_STATES, State, txn_id_text
from magnetar.spark.progress import PROGRESS_TOPIC


def test_the_states_are_those_of_the_coordinator() -> None:
    told = {state.label for state in metadata.State if state is not metadata.State.DEAD}
    assert told == {str(state) for state in State}
    unfinished = {state.label for state in metadata.UNFINISHED | {metadata.State.ONGOING}}
    assert unfinished == {str(state) for state in OPEN_STATES}


def test_a_txn_id_is_shown_as_brokers_log_it() -> None:
    txn_id = TxnId(coordinator_partition=7, producer_epoch=3, count=2, producer_id=1001)
    assert txn_id_text(txn_id.to_bytes()) == str(txn_id)


def test_brokers_keep_the_progress_of_spark_for_ever() -> None:
    assert PROGRESS_TOPIC == coordinator.groups.offsets.store.PROGRESS_TOPIC
