"""What a transfer says follows from its number, and no money comes or goes."""

from __future__ import annotations

from pathlib import Path

from spark_examples.transfer_writer import Event, Journal, last_of
from spark_examples.transfers import ACCOUNTS, OPENING_BALANCE, balances, transfer, value_of


def test_a_transfer_has_two_accounts_and_an_amount() -> None:
    for number in range(5_000):
        debited, credited, amount = transfer(2, number)
        assert debited != credited
        assert {debited, credited} <= set(range(ACCOUNTS))
        assert 1 <= amount <= 100


def test_a_record_says_what_the_transfer_is() -> None:
    debited, credited, amount = transfer(1, 77)
    assert value_of(1, 5, 77) == b"writer-1,5,77,%d,%d,%d" % (debited, credited, amount)


def test_money_moves_and_neither_comes_nor_goes() -> None:
    found = balances([(0, 0, 1_000), (1, 20, 500)])
    assert sum(found) == ACCOUNTS * OPENING_BALANCE
    assert found != [OPENING_BALANCE] * ACCOUNTS
    assert balances([(0, 0, 600), (1, 20, 500), (0, 600, 1_000)]) == found


def test_a_writer_goes_on_behind_its_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert last_of(path) == (0, 0)
    journal = Journal(path)
    journal.note(Event.BEGIN, 0, 0, 7)
    journal.note(Event.COMMITTED, 0, 0, 7)
    journal.note(Event.BEGIN, 1, 7, 12)
    assert last_of(path) == (2, 12)
