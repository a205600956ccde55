"""Putting a cleaned segment in the place of others, so that a crash leaves the old or the new.

The names tell how far the exchange has come, as in Kafka (LogSegments, LogLoader). Each of these
steps is durable before the next one begins:

1. `.log.cleaned`, `.index.cleaned`, `.timeindex.cleaned`, `.txnindex.cleaned`: written and synced.
2. The three indexes are named `.swap`.
3. `.log.swap`: from here on the new segment counts, and what lies beside it does not.
4. The old segments' files are named `.deleted`, or are gone. In memory the segments are exchanged
   in the same step. A reader of an old one has it open.
5. The three indexes get their names.
6. `.log`: done. The old files are deleted later.

So the next start finds what to do by the names alone (`finish_swaps`). The last batch of a cleaned
segment ends where its last source did, which tells what the segment replaces.
The order is Kafka's with two syncs more: names may become durable in any order between syncs.
"""

from __future__ import annotations

from collections.abc import Sequence

from logstore.disk.files import FileSystem
from logstore.segments.names import INDEX_SUFFIXES, LOG_SUFFIX, SWAP, segment_path
from logstore.segments.segment_reads import scan

_SWAPPED = LOG_SUFFIX + SWAP


def finish_swaps(files: FileSystem, directory: str, names: Sequence[str]) -> bool:
    """Finish every swap in a log's directory, with these names, that has come to its third step.

    Returns whether there was one. Blocks.
    """
    bases = [name.removesuffix(_SWAPPED) for name in names if name.endswith(_SWAPPED)]
    for base_offset in bases:
        if base_offset.isdigit():
            _finish(files, directory, int(base_offset))
    return bool(bases)


def _finish(files: FileSystem, directory: str, base_offset: int) -> None:
    def path(suffix: str) -> str:
        return segment_path(directory, base_offset, suffix)

    end_offset = _end_of(files, path(_SWAPPED), base_offset)
    for name in files.list(directory):
        stem, _, suffix = name.partition(".")
        is_of_segment = f".{suffix}" in (LOG_SUFFIX, *INDEX_SUFFIXES)
        if is_of_segment and stem.isdigit() and base_offset < int(stem) < end_offset:
            files.unlink(f"{directory}/{name}")
    files.sync_directory(directory)
    for suffix in INDEX_SUFFIXES:
        # A missing one has its name already, so nothing old was left by then.
        if files.exists(path(suffix + SWAP)):
            files.rename(path(suffix + SWAP), path(suffix))
    files.sync_directory(directory)
    files.rename(path(_SWAPPED), path(LOG_SUFFIX))
    files.sync_directory(directory)


def _end_of(files: FileSystem, path: str, base_offset: int) -> int:
    file = files.open(path)
    try:
        end_offset = base_offset
        for _, header, _ in scan(file, 0, file.size(), whole=False):
            end_offset = header.next_offset
        return end_offset
    finally:
        file.close()
