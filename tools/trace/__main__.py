"""`python -m tools.trace`, the way of a request, measured; `make trace API=...` runs it.

    make trace API=Produce
    make trace API="Produce v11 transactional, EndTxn v4"
    make trace API=all

prints for each request a line per call and then the counts; `tools.trace.way` says what counts.
`--summary` prints a table of counts, a row for each request. `--document` draws the table of
docs/architecture.md again; `--check` fails where that table is not what is measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from difflib import unified_diff
from typing import NamedTuple

from tools.drawn_sections import table, with_sections
from tools.trace.broker import ROOT, Recorder, run_beside
from tools.trace.samples import errors
from tools.trace.way import Counts, Way, counted, drawn, summary, usual
from tools.trace.world import Request, World
from wire.error_code import ErrorCode

PAGE = ROOT / "docs" / "architecture.md"
TOOL = "tools.trace --document"
EVERY = "all"
#: The first rounds compile codecs, open files and reserve blocks.
_WARM_UP_ROUNDS = 12
_MEASURED_ROUNDS = 5
#: After so long nothing of the request before is under way. A record that need not be durable at
#: once, such as COMPLETE_COMMIT, waits 50 ms for company on its way to the disk.
_QUIET_S = 0.15
_TIMEOUT_S = 10.0

#: The requests of docs/architecture.md, with their counts before the rooms were moved.
BEFORE = {
    "Produce v11": Counts(32, 125, 87),
    "Produce v11 transactional": Counts(41, 144, 103),
    "EndTxn v4": Counts(53, 228, 161),
    "Produce v13 transactional": Counts(57, 232, 155),
    "EndTxn v5": Counts(51, 224, 159),
    "AddPartitionsToTxn v3": Counts(43, 111, 68),
    "TxnOffsetCommit v5": Counts(62, 246, 168),
    "InitProducerId v4": Counts(43, 148, 109),
    "Fetch v18": Counts(20, 75, 48),
    "Metadata v13": Counts(10, 36, 23),
    "OffsetCommit v10": Counts(42, 155, 107),
    "OffsetFetch v10": Counts(16, 51, 36),
    "JoinGroup v9": Counts(22, 65, 49),
    "SyncGroup v5": Counts(41, 156, 114),
    "Heartbeat v4": Counts(14, 40, 30),
    "ConsumerGroupHeartbeat v1": Counts(30, 97, 62),
    "FindCoordinator v6": Counts(10, 29, 22),
}


class Trace(NamedTuple):
    """The way of a request, and the errors in its answer."""

    way: Way
    codes: frozenset[int]

    @property
    def refusal(self) -> str:
        """The errors by name; "" where the request succeeded."""
        return ", ".join(ErrorCode(code).name for code in sorted(self.codes))


def traces(requests: Sequence[Request]) -> dict[Request, Trace]:
    """Return the trace of each request; of every API that is served, where the one is `all`.

    Call it in the main thread of a process that is for nothing else: a broker runs here.
    """
    found: dict[Request, Trace] = {}

    def work(bootstrap: str, recorder: Recorder) -> None:
        chosen = list(requests)
        if chosen == [Request(EVERY)]:
            chosen = [Request(api) for api in World(bootstrap, Request("Metadata"), 0).apis]
        for number, request in enumerate(chosen, 1):
            found[request] = _trace(World(bootstrap, request, number), recorder)

    run_beside(work)
    return found


def _trace(world: World, recorder: Recorder) -> Trace:
    ways: list[Way] = []
    codes: set[int] = set()
    for number in range(_WARM_UP_ROUNDS + _MEASURED_ROUNDS):
        request = world.prepared()
        is_measured = number >= _WARM_UP_ROUNDS
        if is_measured:
            time.sleep(_QUIET_S)
            recorder.arm()
        answer = world.send(request)
        if is_measured:
            ways.append(recorder.take(_TIMEOUT_S))
            codes = errors(answer)
    world.connection.close()
    return Trace(usual(ways), frozenset(codes))


def summary_table(found: Mapping[Request, Trace]) -> str:
    """Return the counts as a table, a row for each request."""
    rows = [
        (str(request), *map(str, counted(trace.way)), trace.refusal)
        for request, trace in found.items()
    ]
    return table(("request", "files", "calls", "moves", "refused with"), rows)


def document_table(found: Mapping[Request, Trace]) -> str:
    """Return the table of docs/architecture.md: the counts, each with the one before."""
    rows = []
    for request, trace in found.items():
        before = BEFORE[str(request)]
        pairs = zip(counted(trace.way), before, strict=True)
        rows.append((str(request), *(f"{now} ({then})" for now, then in pairs)))
    return table(("request", "files (before)", "calls (before)", "moves (before)"), rows)


def document(page: str) -> str:
    """Return `page` with the table drawn again, from requests that are measured now."""
    found = traces([Request.parse(name) for name in BEFORE])
    return with_sections(page, {"requests": lambda: document_table(found)}, TOOL)


def _check() -> int:
    """Return 0 if the document has what is measured, else 1, after printing what differs."""
    page = PAGE.read_text()
    drawn_page = document(page)
    difference = unified_diff(
        page.splitlines(), drawn_page.splitlines(), "written", "measured", lineterm="", n=0
    )
    print("\n".join(difference))
    return int(page != drawn_page)


def main() -> int:
    """Print or draw what the command line asks for. Exit code 2: no such request."""
    parser = argparse.ArgumentParser(prog="python -m tools.trace", description=__doc__)
    parser.add_argument("--summary", action="store_true", help="a table, a row for each request")
    parser.add_argument("--document", action="store_true", help=f"draw {PAGE.name} again")
    parser.add_argument("--check", action="store_true", help=f"fail where {PAGE.name} is stale")
    parser.add_argument("request", nargs="*", help="API [vVERSION] [transactional], ...")
    arguments = parser.parse_args()
    if arguments.document:
        PAGE.write_text(document(PAGE.read_text()))
        return 0
    if arguments.check:
        return _check()
    names = " ".join(arguments.request) or ", ".join(BEFORE)
    try:
        found = traces([Request.parse(name) for name in names.split(",")])
    except ValueError as mistake:
        parser.error(str(mistake))
    if arguments.summary or not arguments.request:
        print(summary_table(found))
        return 0
    for request, trace in found.items():
        refused = f", refused with {trace.refusal}" if trace.codes else ""
        print(f"{request}\n{drawn(trace.way)}\n{summary(counted(trace.way))}{refused}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
