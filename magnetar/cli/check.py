"""`magnetar check` and `magnetar repair`: a stopped broker's data directory."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from magnetar.cli.commands import EXIT_FAILURE, fail, json_lines, reports_errors
from magnetar.client.readable import size

if TYPE_CHECKING:
    from logstore.segments.findings import Finding

#: How many bytes are read before the bar of progress is drawn again.
_PROGRESS_BYTES = 64 * 1024 * 1024
#: The characters of the bar of progress.
_BAR = 30

_directory = click.argument(
    "directory", metavar="DATA", type=click.Path(exists=True, file_okay=False, path_type=Path)
)


@click.command("check", short_help="Verify a stopped broker's data directory.")
@_directory
@json_lines
@reports_errors
def check(directory: Path, as_json: bool) -> None:
    """Verify the DATA directory of a stopped broker, and say what a repair would do.

    Reads everything: the CRC, the header and the offsets of every batch, indexes, snapshots,
    checkpoints, the catalog, the journal, and transactions that nothing would end. Changes nothing.

    \b
    magnetar check data
    magnetar check data --json | jq 'select(.severity == "error")'

    A note is not a fault: the next start does what is needed. Exit code 0: no more than notes;
    1: something is wrong; 2: the directory is in use, of another build, or no data directory.
    """
    _run_check(directory, as_json)


@click.command("repair", short_help="Mend a stopped broker's data directory.")
@_directory
@click.option("--dry-run", is_flag=True, help="Change nothing: print what check prints.")
@json_lines
@reports_errors
def repair(directory: Path, dry_run: bool, as_json: bool) -> None:
    """Make the repairs that `magnetar check` names, in the DATA directory of a stopped broker.

    Nothing is deleted: files that are taken out go to DATA/.magnetar-set-aside, and list.txt there
    has a line for each. After an interruption, give the same command again.

    \b
    magnetar repair data --dry-run
    magnetar repair data

    Exit code 0: all is well; 1: a fault is left; 2: the directory is in use, of another
    build, or no data directory.
    """
    if dry_run:
        _run_check(directory, as_json)
        return
    from magnetar.checking.run import NotCheckable, is_note, repair_directory

    reading = _Reading(directory)
    try:
        left = repair_directory(directory, reading, lambda finding: _show(finding, as_json))
    except NotCheckable as refusal:
        raise click.UsageError(str(refusal)) from None
    for finding in left:
        _show(finding, as_json)
    if not all(map(is_note, left)):
        fail(f"{len(left)} findings are left: see magnetar check")
    reading.tell("left", left, as_json)


def _run_check(directory: Path, as_json: bool) -> None:
    from magnetar.checking.run import NotCheckable, check_directory, is_note

    reading = _Reading(directory)
    findings = []
    try:
        for finding in check_directory(directory, reading):
            _show(finding, as_json)
            findings.append(finding)
    except NotCheckable as refusal:
        raise click.UsageError(str(refusal)) from None
    reading.tell("found", findings, as_json)
    if not all(map(is_note, findings)):
        raise SystemExit(EXIT_FAILURE)


def _show(finding: Finding, as_json: bool) -> None:
    severity, path, problem, remedy = finding
    if as_json:
        fields = {
            "severity": severity.value,
            "path": path,
            "problem": problem,
            "remedy": remedy.name.lower(),
            "repair": remedy.value,
        }
        print(json.dumps(fields))
    else:
        print(f"{severity.value} {path}: {problem}\n    repair: {remedy.value}")


class _Reading:
    """Counts the bytes that are read, and draws a bar on a terminal."""

    def __init__(self, directory: Path) -> None:
        self._is_shown = sys.stderr.isatty()
        self._total = 0
        if self._is_shown:
            self._total = sum(
                each.stat().st_size for each in directory.rglob("*") if each.is_file()
            )
        self._read = self._told = 0

    def __call__(self, count: int) -> None:
        self._read += count
        if self._is_shown and self._read - self._told >= _PROGRESS_BYTES:
            self._told = self._read
            # Index files are allocated before they are filled, and some files are read twice.
            share = min(self._read / max(self._total, 1), 1)
            bar = "#" * round(_BAR * share)
            print(f"\r[{bar:-<{_BAR}}] {size(self._read)} ", end="", file=sys.stderr, flush=True)

    def tell(self, word: str, findings: Sequence[Finding], as_json: bool) -> None:
        """Say that all was read, and how many findings there are."""
        if as_json:
            return
        counts = Counter(finding.severity.value for finding in findings)
        told = ", ".join(f"{number} x {name}" for name, number in counts.items())
        start = "\r\x1b[K" if self._told else ""  # In place of the bar.
        print(f"{start}{size(self._read)} read; {word}: {told or 'nothing'}", file=sys.stderr)
