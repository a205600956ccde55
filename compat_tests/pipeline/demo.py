"""`make demo`: count the words of Python's standard library exactly once, while everything is
killed.

Starts a broker of its own in a temporary directory. Exit status 0: the counts are exactly true.
Otherwise the directory stays, and the verdict says which transactions counted an input again.
`--picture FILE` keeps what the terminal showed as an SVG, which the README shows.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from compat_tests.brokers import BrokerFailed, make_broker, running
from compat_tests.pipeline.run import Plan, Unfinished, run_pipeline
from compat_tests.pipeline.verdict import Verdict

#: Rich's own SVG template loads a web font; this one takes the reader's monospaced font.
_PICTURE = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}"
xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace;
font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="make demo")
    parser.add_argument("--broker", choices=("magnetar", "kafka"), default="magnetar")
    parser.add_argument("--words", type=int, default=None, help="stop the text after so many words")
    parser.add_argument(
        "--pauses", action="store_true", help="let workers stand still, too, beyond their sessions"
    )
    parser.add_argument("--picture", type=Path, help="write the terminal's picture, an SVG, here")
    arguments = parser.parse_args()
    console = Console(record=True, width=128, highlight=False, markup=False)
    plan = Plan(words_max=arguments.words, pauses=arguments.pauses)
    status = _count(console, arguments.broker, plan)
    if arguments.picture is not None:
        arguments.picture.parent.mkdir(parents=True, exist_ok=True)
        console.save_svg(str(arguments.picture), title="make demo", code_format=_PICTURE)
        print(f"\nThe picture of this run is {arguments.picture}.")
    return status


def _count(console: Console, kind: str, plan: Plan) -> int:
    started_at = time.monotonic()

    def report(line: str) -> None:
        style = "bold red" if line.startswith("kill -9") else None
        console.print(f"{time.monotonic() - started_at:5.1f} s  {line}", style=style)

    directory = Path(tempfile.mkdtemp(prefix="magnetar-demo-"))
    broker = make_broker(kind, directory)
    try:
        with running(broker):
            report(f"{broker.kind} serves {broker.bootstrap}")
            verdict, killed = run_pipeline(broker, plan, report)
    except (BrokerFailed, Unfinished) as error:
        report(f"FAILED: {error}\nthe broker's last words:\n{broker.output()[-2000:]}")
        report(f"its directory is kept: {directory}")
        return 1
    report(f"killed on the way: {killed}")
    status = _conclude(console, verdict)
    if status == 0:
        shutil.rmtree(directory)
    else:
        report(f"the broker's directory is kept: {directory}")
    return status


def _conclude(console: Console, verdict: Verdict) -> int:
    console.print(
        f"\n{verdict.words:,} words, {verdict.distinct_words:,} different ones,"
        f" in {verdict.inputs:,} inputs; {verdict.aborted_records:,} records of aborted"
        " transactions lie in the log and no read_committed reader saw one"
    )
    if verdict.faults:
        console.print("\nNOT EXACTLY ONCE:", style="bold red")
        for fault in verdict.faults:
            console.print(f"  {fault}")
        return 1
    console.print(
        "\nEXACTLY ONCE: every word has its true count, every input was counted once.",
        style="bold green",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
