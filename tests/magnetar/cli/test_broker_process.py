"""The process of a broker: what it prints when it cannot go on, and how signals end it."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from magnetar.cli.broker_process import exit_code
from magnetar.cli.supervisor import ONE_SIGNAL_S
from magnetar.storage.database import CatalogUnavailable


def test_a_node_whose_database_is_away_ends_with_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def serve() -> int:
        raise CatalogUnavailable("catalog postgresql://db: cannot open: refused")

    assert exit_code(serve) == 1
    told = "magnetar: fatal: catalog postgresql://db: cannot open: refused\n"
    assert capsys.readouterr().err == told


def test_a_second_signal_ends_it_at_once() -> None:
    hangs = """
import asyncio
from magnetar.cli.broker_process import set_by_signals

async def serve():
    stop = set_by_signals(asyncio.get_running_loop())
    print("ready", flush=True)
    await stop.wait()
    print("stops", flush=True)
    await asyncio.sleep(60)

asyncio.run(serve())
"""
    command = [sys.executable, "-c", hangs]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.readline() == "stops\n"
        time.sleep(ONE_SIGNAL_S)  # A signal that comes sooner counts as the first one.
        process.terminate()
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, "magnetar: stopped at once\n")
