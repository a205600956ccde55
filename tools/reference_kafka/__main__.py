"""Run the reference from a shell.

python -m tools.reference_kafka fetch
    copy the jars of the reference and of the release before, print where they are
python -m tools.reference_kafka PORT DIRECTORY [key=value]…
    a broker in the foreground; Ctrl-C stops it
python -m tools.reference_kafka CLASS [argument]…
    a tool of the jars, by its Java class
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tools.reference_kafka.broker import ReferenceKafka
from tools.reference_kafka.jars import OLDER, REFERENCE, ReferenceUnavailable, fetch, java_command


def main(arguments: list[str]) -> int:
    if arguments == ["fetch"]:
        for jars in (REFERENCE, OLDER):
            print(fetch(jars))
        return 0
    if len(arguments) >= 2 and arguments[0].isdigit():
        return _serve(int(arguments[0]), Path(arguments[1]), arguments[2:])
    if arguments and "." in arguments[0]:
        command = java_command(*arguments)
        os.execv(command[0], command)
    print(__doc__, file=sys.stderr)
    return 2


def _serve(port: int, directory: Path, settings: list[str]) -> int:
    pairs = dict(setting.split("=", 1) for setting in settings)
    broker = ReferenceKafka(port, directory.resolve(), pairs)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        broker.start()
        print(f"ready 127.0.0.1:{port}", flush=True)
        return broker.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        broker.stop()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ReferenceUnavailable as error:
        sys.exit(f"reference kafka: {error}")
