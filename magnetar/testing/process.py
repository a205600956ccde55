"""A `magnetar serve` process: start it, stop it, kill it, start it again.

Owns the process, certificates and settings for clients, and the data directory unless the caller
names one: a named one stays.
"""

from __future__ import annotations

import re
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from select import POLLIN, poll
from typing import IO, TYPE_CHECKING, Any, Self

from magnetar.testing.access import Access

if TYPE_CHECKING:
    from magnetar.client.acls import Acl

#: What a setting's value may be.
Setting = str | int | float
#: The form of the line is a promise of `magnetar serve`.
_READY = re.compile(r"ready on ([^ ,]+):(\d+)")
#: How `magnetar serve` begins a line about a setting that it does not know, or that has no effect.
_WARNING = "magnetar: warning: "
STOP_TIMEOUT_SECONDS = 20.0
#: A start reads the tail of every log: far more than a test's data ever needs.
START_TIMEOUT_SECONDS = 120.0


class NotReady(Exception):
    """The broker ended, or did not come up in time; the message has its output."""


class BrokerProcess:
    """One `magnetar serve`. A context manager: the end of its block stops the broker cleanly."""

    #: The process group of the process; None: that of this one.
    _process_group: int | None = None

    def __init__(
        self,
        data_dir: Path | str | None = None,
        settings: Mapping[str, Setting] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: bool = False,
        users: Mapping[str, str] | None = None,
        acls: Iterable[Iterable[Acl]] = (),
        mechanism: str = "PLAIN",
        workers: int = 1,
        start_timeout_s: float = START_TIMEOUT_SECONDS,
    ) -> None:
        """`settings` have Kafka's names, and text, numbers or booleans as values. Port 0 takes
        a free port, which restarts keep.

        Without `data_dir` the data is in a temporary directory, which the end of the block deletes.
        `users` are passwords by name; clients then log in by `mechanism`. `acls` come from `allow`
        and `deny`: what none of them allows is denied. With several `workers` the broker is a
        cluster of as many nodes, on `port` and the ports after it; `kill` ends all of them.
        """
        if workers < 1:
            raise ValueError(f"workers={workers}: a broker has one node at least")
        given = texts_of(settings or {})
        # Certificates stay out of the data directory, which may be looked at and outlive them.
        files = Path(tempfile.mkdtemp(prefix="magnetar-"))
        held = ExitStack()
        held.callback(shutil.rmtree, files, ignore_errors=True)
        # Runs at the end of the block, or with a broker that was used without one.
        self._clean_up = weakref.finalize(self, held.close)
        self.data_dir = files / "data" if data_dir is None else Path(data_dir)
        self.host = host
        self.port = port or _free_ports(host, workers, held)
        self.workers = workers
        self._files = files
        self._access = Access(
            files, tls, users or {}, [a for each in acls for a in each], mechanism
        )
        self._is_new = True
        self._settings = {**self._access.broker_settings(), **given}
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[str] | None = None
        self._stderr: IO[str] | None = None
        self._log = ""

    @property
    def bootstrap_servers(self) -> str:
        """The setting `bootstrap.servers` of clients."""
        return f"{self.host}:{self.port}"

    def client_settings(self, user: str | None = None) -> dict[str, str]:
        """Return the settings of Java's clients and tools, for the first user or this one."""
        return {"bootstrap.servers": self.bootstrap_servers, **self._access.client(user)}

    def confluent_settings(self, user: str | None = None) -> dict[str, Any]:
        """Return the settings of confluent-kafka and other clients of librdkafka."""
        security = self._access.security(user)
        return {"bootstrap.servers": self.bootstrap_servers, **security.for_librdkafka()}

    def kafka_python_settings(self, user: str | None = None) -> dict[str, Any]:
        """Return the keyword arguments of kafka-python."""
        security = self._access.security(user)
        settings = {
            "bootstrap_servers": self.bootstrap_servers,
            "security_protocol": security.protocol,
            "ssl_cafile": security.truststore,
            "sasl_mechanism": security.mechanism,
            "sasl_plain_username": security.username,
            "sasl_plain_password": security.password,
        }
        return {name: value for name, value in settings.items() if value}

    def aiokafka_settings(self, user: str | None = None) -> dict[str, Any]:
        """Return the keyword arguments of aiokafka's clients."""
        settings = self.kafka_python_settings(user)
        # aiokafka has the same names, but for TLS.
        authority = settings.pop("ssl_cafile", None)
        if authority is not None:
            settings["ssl_context"] = ssl.create_default_context(cafile=authority)
        return settings

    def properties_file(self, user: str | None = None) -> Path:
        """Return a file of `client_settings`, as the option --command-config of tools takes it."""
        path = self._files / f"{secrets.token_hex(8)}.properties"
        lines = self.client_settings(user).items()
        path.write_text("".join(f"{name}={_escaped(value)}\n" for name, value in lines))
        return path

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._running().pid

    @property
    def log(self) -> str:
        """The broker's standard error since its last start."""
        if self._stderr is not None:
            self._stderr.seek(0)
            self._log = self._stderr.read()
        return self._log

    def start(self) -> None:
        """Return when clients can connect. Raises NotReady."""
        assert self._process is None, "it is running"
        if self._is_new:
            self._access.make_users(self.data_dir)
        self._spawn()
        self.port = self._wait_until_ready()
        if self._is_new:
            self._warn()
            self._access.make_acls(self.bootstrap_servers)
        self._is_new = False

    def _warn(self) -> None:
        """Warn of settings that have no effect: a mistyped one would test something else."""
        for line in self.log.splitlines():
            if line.startswith(_WARNING):
                warnings.warn(line.removeprefix(_WARNING), stacklevel=2)

    def _command(self) -> list[str]:
        """Return what is run; the options `--data-dir` and `--config` are put behind it."""
        # The interpreter of the tests, so that it is the magnetar installed beside them.
        return [sys.executable, "-m", "magnetar", "serve"]

    def _inherited(self) -> Sequence[int]:
        """Return the descriptors that the process gets."""
        return ()

    def _spawn(self) -> None:
        command = [*self._command(), "--data-dir", str(self.data_dir)]
        # In a file, not among the arguments: passwords do not show in the list of processes.
        settings = self._files / "server.properties"
        listener = f"{self._access.protocol}://{self.host}:{self.port}"
        given = {"listeners": listener, **self._settings}
        settings.touch(0o600)
        settings.write_text("".join(f"{name}={_escaped(value)}\n" for name, value in given.items()))
        command += ["--config", str(settings)]
        if self.workers > 1:
            command += ["--workers", str(self.workers)]
        # A file, not a pipe: a pipe that is not read would stop the broker once it is full.
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  # kept open
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            pass_fds=self._inherited(),
            process_group=self._process_group,
        )

    def _wait_until_ready(self) -> int:
        """Return the port of the line that says "ready". Raises NotReady."""
        process = self._running()
        assert process.stdout is not None
        # One line comes, whole: `poll` wakes for it, or for the end of the broker. Not `select`: a
        # process with more than 1,024 open files may start brokers too.
        waiting = poll()
        waiting.register(process.stdout, POLLIN)
        is_told = waiting.poll(self._start_timeout_s * 1000)
        line = process.stdout.readline() if is_told else ""
        found = _READY.search(line)
        if found is not None:
            return int(found[2])
        if not is_told:
            self.kill()
            raise NotReady(f"not ready within {self._start_timeout_s:g} s: {self.log}")
        code = process.wait(STOP_TIMEOUT_SECONDS)
        self._ended()
        raise NotReady(f"exit code {code}: {line}{self.log}")

    def stop(self) -> int:
        """Stop the broker cleanly and return its exit code."""
        process = self._running()
        process.terminate()
        try:
            return process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            # A stop that hangs fails the test through its exit code, and leaves no process behind.
            process.kill()
            return process.wait()
        finally:
            self._ended()

    def wait(self) -> int:
        """Return the exit code of a broker that ends by itself."""
        code = self._running().wait(STOP_TIMEOUT_SECONDS)
        self._ended()
        return code

    def kill(self) -> None:
        """End the broker as a crash would, with SIGKILL."""
        process = self._running()
        process.kill()
        process.wait()
        self._ended()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            if self._process is not None:
                self.kill()
            self._clean_up()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.stop()
        self._clean_up()

    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "it is not running"
        return self._process

    def _ended(self) -> None:
        """Keep the output, and close everything. The process has ended."""
        assert self._process is not None and self._process.stdout is not None
        assert self._stderr is not None
        self._log = self.log
        self._stderr.close()
        self._stderr = None
        self._process.stdout.close()
        self._process = None


def _free_ports(host: str, count: int, held: ExitStack) -> int:
    """Return the first of `count` neighbouring free ports, which restarts find free too.

    On Linux nothing else gets them until `held` is closed: they are bound here, to sockets that do
    not listen. Elsewhere a bound socket would keep the broker out too: there the ports are only
    known to have been free.
    """
    while True:
        with ExitStack() as binding:
            try:
                first = _bound(host, 0, binding)
            except OSError:
                return 0  # The broker will say what is wrong with its host.
            try:
                for number in range(1, count):
                    _bound(host, first + number, binding)
            except (OSError, OverflowError):
                continue  # One of them is taken, or beyond the last port.
            if sys.platform == "linux":
                held.push(binding.pop_all())
            return first


def _bound(host: str, port: int, binding: ExitStack) -> int:
    """Bind a free port to a socket beside which a broker may listen; return the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held = binding.enter_context(socket.socket(family))
    held.bind((host.strip("[]"), port))
    # After that: a port that is held for another broker is not free.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound: int = held.getsockname()[1]
    return bound


def texts_of(settings: Mapping[str, Setting]) -> dict[str, str]:
    """Return settings as Kafka writes them. Raises TypeError for what is no value."""
    return {name: _text(name, value) for name, value in settings.items()}


def _text(name: str, value: Setting) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, Setting):
        raise TypeError(f"the setting {name} is {value!r}: give text, a number or a boolean")
    return str(value)


def _escaped(value: str) -> str:
    """Return a value as a .properties file has it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")
