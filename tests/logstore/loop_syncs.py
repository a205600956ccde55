"""Which syncs the event loop waits for."""

from __future__ import annotations

import threading

import pytest

from logstore.disk.descriptors import DiskFile
from logstore.disk.files import DiskFiles


def watch_syncs_on_loop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the syncs that the event loop's thread waits for from now on, by name."""
    on_loop: list[str] = []

    def watch(kind: type, name: str) -> None:
        sync = getattr(kind, name)

        def watched(self: object, *rest: str) -> None:
            if threading.current_thread() is threading.main_thread():
                on_loop.append(name)
            sync(self, *rest)

        monkeypatch.setattr(kind, name, watched)

    watch(DiskFile, "sync")
    watch(DiskFiles, "sync_directory")
    watch(DiskFiles, "sync_all")
    return on_loop
