"""Traps others fell into, and scenarios no public suite covers: which test of ours stands for each.

The tables are the document; the tests here check that every test they name exists. What a restart
could open again runs with fsync (power is lost) and with page-cache (the process ends):
`simulation/test_traps_by_durability.py`.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent

_BUFFER = "logstore/partition/test_transaction_buffer.py"
_PARTITION = "logstore/partition/test_log.py"
_PRODUCERS = "logstore/partition/test_producer_state.py"
_SNAPSHOT = "logstore/partition/test_snapshot.py"
_ABORTED = "logstore/segments/test_aborted_index.py"
_CRASH = "logstore/partition/test_crash_partitions.py"
_RUNTIME = "magnetar/runtime/test_transactions.py"
_RUNTIME_CRASH = "magnetar/runtime/test_transactions_crash.py"
_GROUPS = "magnetar/runtime/test_groups.py"
_GROUPS_TXN = "magnetar/runtime/test_groups_transactions.py"
_TRAPS = "magnetar/runtime/test_transaction_traps.py"
_LIMITS = "magnetar/runtime/test_transaction_limits.py"
_SIMULATION = "simulation/test_whole_transactions.py"
_HEALING = "simulation/test_healing.py"
_DURABILITY = "simulation/test_traps_by_durability.py"
_VERSION_2 = "coordinator/transactions/test_end_txn_version_2.py"
_INIT = "coordinator/transactions/test_init_producer_id.py"

#: Number -> what went wrong elsewhere, and the tests that show it does not here.
TRAPS: dict[int, tuple[str, tuple[str, ...]]] = {
    1: (
        "A reader racing the first batch of a transaction saw it below the stable offset.",
        (f"{_BUFFER}::test_a_reader_racing_the_first_batch_of_a_transaction_never_sees_it",),
    ),
    2: (
        "Validation after the append left garbage stored and the producer hanging.",
        (
            f"{_PARTITION}::test_what_is_refused_leaves_no_trace",
            f"{_TRAPS}::test_a_failed_validation_leaves_nothing_and_the_producer_goes_on",
        ),
    ),
    3: (
        "A zombie's batch after its abort marker opened an ownerless transaction.",
        (
            f"{_DURABILITY}::test_a_zombie_writes_nothing_before_and_after_a_crash",
            f"{_HEALING}::test_data_of_nobody_is_aborted",
            f"{_PARTITION}::test_a_zombies_batch_after_its_abort_marker_is_refused",
            f"{_TRAPS}::test_a_zombies_batch_after_its_abort_marker_touches_no_later_transaction",
            "coordinator/transactions/test_checks.py::test_a_zombies_data_is_refused_in_every_version",
        ),
    ),
    4: (
        "Committed transactional offsets vanished when the group coordinator reloaded.",
        (
            f"{_GROUPS_TXN}::test_offsets_of_a_committed_transaction_are_there",
            f"{_GROUPS_TXN}::test_no_crash_loses_a_commit_or_shows_an_aborted_one",
            f"{_DURABILITY}::test_offsets_have_the_outcome_of_their_transaction_after_a_crash",
        ),
    ),
    5: (
        "Offset records of a whole group under one compaction key.",
        ("coordinator/groups/test_offsets.py::test_every_partition_keeps_its_own_offset",),
    ),
    6: (
        "A duplicate was answered with an error, or its state was lost on restart.",
        (
            f"{_PRODUCERS}"
            "::test_a_duplicate_of_the_last_five_batches_is_answered_with_its_original_offset",
            f"{_PARTITION}"
            "::test_a_duplicate_after_a_restart_is_answered_with_its_original_offset_and_time",
            f"{_DURABILITY}::test_a_duplicate_after_a_crash_is_answered_with_its_original_offset",
        ),
    ),
    7: (
        "A sequence persisted apart from its batch: a failed write, then a 'duplicate'.",
        (f"{_PARTITION}::test_a_write_that_fails_is_not_taken_for_a_duplicate_on_retry",),
    ),
    8: (
        "The high watermark advanced before the bytes were stored.",
        (
            f"{_PARTITION}::test_nothing_is_visible_before_it_is_durable",
            f"{_CRASH}::test_everything_acknowledged_survives_any_crash",
        ),
    ),
    9: (
        "Zombie coordinators wrote markers.",
        (f"{_PRODUCERS}::test_markers_of_zombies_are_refused",),
    ),
    10: (
        "One deleted topic dropped every other participant's marker.",
        (
            f"{_RUNTIME}::test_one_deleted_participant_is_skipped_alone",
            f"{_RUNTIME}::test_a_participant_deleted_while_its_marker_is_awaited_is_skipped",
        ),
    ),
    11: (
        "A failed log write left pending state: CONCURRENT_TRANSACTIONS for ever.",
        (f"{_RUNTIME_CRASH}::test_a_full_disk_at_any_write_is_survived_by_a_restart",),
    ),
    12: (
        "Two hash functions for coordinator partitions.",
        (
            "coordinator/test_partitioning.py::test_hash_is_java_string_hash_code",
            "coordinator/test_partitioning.py::test_partition_is_that_of_the_hash_without_its_sign",
        ),
    ),
    13: (
        "Each fetch returned every later abort.",
        (
            f"{_PARTITION}::test_a_fetch_is_told_of_the_aborts_in_what_it_returns_only",
            f"{_ABORTED}"
            "::test_a_hundred_thousand_aborted_transactions_cost_a_fetch_only_its_overlap",
        ),
    ),
    14: (
        "read_uncommitted got an aborted list; LATEST under read_committed was not the stable one.",
        (
            f"{_TRAPS}::test_uncommitted_readers_get_aborted_data_and_no_aborted_list",
            f"{_TRAPS}::test_the_latest_offset_is_the_stable_one_for_committed_readers",
        ),
    ),
    15: (
        "Recovery time proportional to the age of the oldest transaction.",
        (f"{_SNAPSHOT}::test_recovery_does_not_grow_with_the_age_of_the_oldest_transaction",),
    ),
    16: (
        "Readers stopped where the tail is only markers or aborted data.",
        (f"{_BUFFER}::test_a_tail_of_markers_and_aborted_data_alone_moves_the_reader_on",),
    ),
    17: (
        "A timed-out transaction was not ended after a restart; an outcome was forgotten.",
        (
            f"{_RUNTIME}::test_a_transaction_that_timed_out_while_the_broker_was_down_is_aborted",
            f"{_RUNTIME}::test_commit_retried_after_a_lost_answer_and_a_restart_is_success",
            f"{_DURABILITY}::test_what_timed_out_while_the_broker_was_down_is_aborted_at_its_start",
            f"{_DURABILITY}::test_an_end_retried_after_a_crash_at_any_moment_has_one_outcome",
        ),
    ),
    18: (
        "An EndTxn succeeded, and its offsets waited for an unrelated older transaction.",
        (f"{_TRAPS}::test_offsets_do_not_wait_for_an_older_transaction_of_somebody_else",),
    ),
    19: (
        "One producer id's whole map in one record; maps that never expire.",
        (
            f"{_PRODUCERS}::test_a_silent_producer_expires_unless_its_transaction_is_open",
            f"{_PRODUCERS}::test_a_hundred_thousand_producers_fit_into_memory",
            f"{_LIMITS}::test_an_id_long_unused_is_forgotten_by_a_tombstone_also_after_a_restart",
        ),
    ),
    20: (
        "A join implemented by polling; every heartbeat a disk write.",
        (
            f"{_GROUPS}::test_two_members_form_a_generation_and_share_the_leaders_assignment",
            f"{_GROUPS}::test_a_heartbeat_writes_nothing",
        ),
    ),
    21: (
        "A delayed request of transaction n landed in n+1 (KAFKA-17754).",
        (
            f"{_VERSION_2}::test_data_keeps_the_old_epoch_and_the_marker_has_the_new_one",
            f"{_VERSION_2}::test_the_retry_is_of_that_epoch_alone",
            f"{_SIMULATION}::test_no_crash_loses_tears_dirties_duplicates_or_hangs",
        ),
    ),
    22: (
        "API versions were advertised that no handler implements.",
        (
            f"{_TRAPS}::test_every_version_that_is_advertised_is_implemented",
            "magnetar/apis/test_hostile_requests.py::test_anything_well_formed_is_answered",
        ),
    ),
    23: (
        "Responses without the three watermarks.",
        (f"{_TRAPS}::test_a_fetch_tells_all_three_watermarks_with_and_without_records",),
    ),
}

SCENARIOS: dict[str, tuple[str, tuple[str, ...]]] = {
    "a": (
        "Offsets in a transaction, then a reload of the group coordinator.",
        (
            f"{_GROUPS_TXN}::test_offsets_of_a_committed_transaction_are_there",
            f"{_GROUPS_TXN}::test_offsets_of_an_aborted_transaction_are_not",
            f"{_GROUPS_TXN}::test_offsets_of_an_open_transaction_are_unstable_until_it_ends",
            f"{_DURABILITY}"
            "::test_offsets_pending_over_a_crash_wait_for_the_end_of_their_transaction",
        ),
    ),
    "b": (
        "A tight read_committed loop against thousands of transaction starts.",
        (
            f"{_BUFFER}::test_a_tight_committed_read_loop_against_thousands_of_starts"
            "_sees_ended_ones_only",
        ),
    ),
    "c": (
        "Zombie produce after the abort marker, then a new transaction of that producer id.",
        (f"{_TRAPS}::test_a_zombies_batch_after_its_abort_marker_touches_no_later_transaction",),
    ),
    "d": ("A duplicate after a restart returns the original offset.", TRAPS[6][1][1:]),
    "e": ("ListOffsets LATEST by isolation with an open transaction.", TRAPS[14][1][1:]),
    "f": (
        "Snapshot during appends: replay equals live.",
        ("logstore/partition/test_live_replay.py::test_live_state_equals_replayed_state",),
    ),
    "g": ("A commit retried after a lost answer and a restart.", TRAPS[17][1][1:]),
    "h": ("One of several participants is deleted.", TRAPS[10][1]),
    "i": ("The oldest transaction is open for hours: recovery is bounded.", TRAPS[15][1]),
    "j": ("10^5 aborted transactions: fetch size and latency are bounded.", TRAPS[13][1][1:]),
    "k": (
        "The int32 wrap of sequences; the rotation at epoch 32766.",
        (
            f"{_PRODUCERS}::test_a_batch_across_the_wrap_continues_and_is_remembered",
            f"{_INIT}::test_a_retried_rotation_is_answered_again",
            f"{_VERSION_2}::test_the_last_epoch_rotates_the_producer_id_at_once",
        ),
    ),
    "l": (
        "Deletion across aborted data and markers. (Compaction is not built yet.)",
        (
            f"{_PARTITION}"
            "::test_deleted_records_are_gone_after_a_restart_too_and_a_later_abort_is_kept",
            f"{_PARTITION}::test_a_deleted_open_transaction_does_not_hold_readers_below_the_start",
            f"{_SNAPSHOT}::test_the_aborted_indexes_of_segments_that_are_gone_go_too",
        ),
    ),
    "m": (
        "A log write fails at every transition of the coordinator.",
        (
            f"{_RUNTIME_CRASH}::test_a_full_disk_at_any_write_is_survived_by_a_restart",
            f"{_GROUPS_TXN}::test_a_disk_that_fails_at_any_write_leaves_nothing_half_done",
        ),
    ),
}


@cache
def names_in(path: str) -> frozenset[str]:
    """Return the names of all tests in a file, also those in classes."""
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    )


def test_all_are_told() -> None:
    assert list(TRAPS) == list(range(1, 24))
    assert list(SCENARIOS) == list("abcdefghijklm")


@pytest.mark.parametrize("one", [*TRAPS, *SCENARIOS], ids=str)
def test_every_trap_and_scenario_has_tests_that_exist(one: int | str) -> None:
    _, names = TRAPS[one] if isinstance(one, int) else SCENARIOS[one]
    assert names
    for name in names:
        path, _, test = name.partition("::")
        assert test in names_in(path), f"{name} does not exist"
