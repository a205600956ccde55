"""Members of a library that blocks: a thread each."""

from __future__ import annotations

import threading
from collections.abc import Callable

from compat_tests.churn.plan import ChurnJob
from compat_tests.pipeline.telling import tell


def run_in_threads(job: ChurnJob, member: Callable[[ChurnJob, int], None]) -> None:
    """Run all members of a process, by number; none of them ends but by its fault."""
    threads = [
        threading.Thread(target=member, args=(job, number), daemon=True)
        for number in range(job.members)
    ]
    for thread in threads:
        thread.start()
    tell("ready")
    for thread in threads:
        thread.join()
    tell("ended", why="a member's thread ended", trace="")
