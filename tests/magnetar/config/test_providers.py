"""`config.providers`: values from files, directories and the environment, and none in a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.config.described import describe_broker_setting
from magnetar.config.load import ConfigError, Given, load, read_properties
from magnetar.config.providers import ProviderFailed, make_providers, resolved, substituted

PACKAGE = "org.apache.kafka.common.config.provider"
KINDS = {
    "file": "FileConfigProvider",
    "dir": "DirectoryConfigProvider",
    "env": "EnvVarConfigProvider",
}
PROVIDERS = {
    "config.providers": "file, dir,env",
    **{f"config.providers.{name}.class": f"{PACKAGE}.{kind}" for name, kind in KINDS.items()},
}


@pytest.fixture(autouse=True)
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "secrets.properties").write_text("key=from the file\nother=x\\\n  y\n")
    (tmp_path / "password").write_text("from the directory")
    monkeypatch.setenv("MAGNETAR_SECRET", "from the environment")
    return tmp_path


def value_of(text: str, **more: str) -> str:
    settings = PROVIDERS | {f"config.providers.{name}": value for name, value in more.items()}
    return substituted(text, make_providers(settings))


def test_each_provider_gives_its_values(secrets: Path) -> None:
    assert value_of(f"${{file:{secrets}/secrets.properties:key}}") == "from the file"
    assert value_of(f"${{file:{secrets}/secrets.properties:other}}") == "xy"
    assert value_of(f"${{dir:{secrets}:password}}") == "from the directory"
    assert value_of("${env:MAGNETAR_SECRET}") == "from the environment"
    assert value_of("a ${env:MAGNETAR_SECRET} b ${env::MAGNETAR_SECRET}") == (
        "a from the environment b from the environment"
    )


def test_what_is_no_variable_of_a_provider_stays() -> None:
    for text in ("", "$", "${env}", "${vault:a:b}", "${", "$ {env:A}", "RULE:a/${1}/"):
        assert value_of(text) == text
    assert substituted("${env:MAGNETAR_SECRET}", {}) == "${env:MAGNETAR_SECRET}"


def test_a_value_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNETAR_SECRET", "${env:HOME}")
    assert value_of("${env:MAGNETAR_SECRET}") == "${env:HOME}"


@pytest.mark.parametrize(
    ("variable", "reason"),
    [
        ("${env:MAGNETAR_MISSING}", "the environment has no such variable"),
        ("${env:/etc:MAGNETAR_SECRET}", "the environment has no paths"),
        ("${file:HERE/secrets.properties:missing}", "has no such key"),
        ("${file:HERE/missing:key}", "no file"),
        ("${file:HERE:key}", "no file"),
        ("${file:key}", "names no path"),
        ("${dir:HERE:missing}", "no file"),
        ("${dir:HERE:../password}", "no name of a file"),
        ("${dir:HERE:..}", "no name of a file"),
        ("${dir:HERE:}", "no name of a file"),
    ],
)
def test_a_value_that_cannot_be_had_is_an_error(secrets: Path, variable: str, reason: str) -> None:
    with pytest.raises(ProviderFailed, match=reason) as failure:
        value_of(variable.replace("HERE", str(secrets)))
    assert str(failure.value).startswith("${")


def test_files_that_are_too_large_or_no_text_are_refused(secrets: Path) -> None:
    (secrets / "large").write_bytes(b"x" * ((1 << 20) + 1))
    (secrets / "bytes").write_bytes(b"\xff")
    (secrets / "bad.properties").write_text("key=\\uXYZ")
    for name in ("large", "bytes"):
        with pytest.raises(ProviderFailed, match="more than|not UTF-8"):
            value_of(f"${{dir:{secrets}:{name}}}")
    with pytest.raises(ProviderFailed, match="malformed"):
        value_of(f"${{file:{secrets}/bad.properties:key}}")


def test_allowed_paths_bound_what_may_be_read(secrets: Path) -> None:
    inside = secrets / "inside"
    inside.mkdir()
    (inside / "pw").write_text("in")
    allowed = {"dir.param.allowed.paths": f"{inside}", "file.param.allowed.paths": f"{inside}"}
    assert value_of(f"${{dir:{inside}:pw}}", **allowed) == "in"
    for path in (secrets, f"{inside}/..", f"{inside}side", f"{inside}/../inside/.."):
        with pytest.raises(ProviderFailed, match="allowed.paths does not allow"):
            value_of(f"${{dir:{path}:password}}", **allowed)
    with pytest.raises(ProviderFailed, match="allowed.paths does not allow"):
        value_of(f"${{file:{secrets}/secrets.properties:key}}", **allowed)


def test_the_pattern_bounds_the_variables_that_may_be_read() -> None:
    only = {"env.param.allowlist.pattern": "MAGNETAR_.*"}
    assert value_of("${env:MAGNETAR_SECRET}", **only) == "from the environment"
    with pytest.raises(ProviderFailed, match="allowlist.pattern does not allow it"):
        value_of("${env:HOME}", **only)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"config.providers": "x"}, r"config.providers.x.class is missing"),
        (
            {"config.providers": "x", "config.providers.x.class": "com.acme.Vault"},
            "com.acme.Vault is not one of org.apache.kafka.common.config.provider",
        ),
        ({**PROVIDERS, "config.providers.env.param.allowlist.pattern": "("}, "no regular expres"),
        ({**PROVIDERS, "config.providers.dir.param.allowed.paths": "here"}, "not absolute"),
        ({**PROVIDERS, "config.providers.dir.param.allowed.paths": "/no/such"}, "does not exist"),
    ],
)
def test_a_provider_that_cannot_be_had_is_an_error(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(ProviderFailed, match=reason):
        make_providers(settings)
    with pytest.raises(ConfigError, match=reason):
        load([Given(name, value, "test") for name, value in settings.items()])


def loaded(**settings: str) -> list[Given]:
    every = PROVIDERS | {name.replace("_", "."): value for name, value in settings.items()}
    return [Given(name, value, "line 1") for name, value in every.items()]


def test_a_brokers_settings_take_values_of_providers(secrets: Path) -> None:
    path = secrets / "server.properties"
    lines = [f"{name}={value}" for name, value in PROVIDERS.items()]
    lines += ["listener.name.outside.ssl.key.password=${env:MAGNETAR_SECRET}", "num.partitions=3"]
    path.write_text("\n".join(lines))
    config, warnings = load(read_properties(path))
    assert config["listener.name.outside.ssl.key.password"] == "from the environment"
    assert (config.num_partitions, warnings) == (3, [])
    assert describe_broker_setting("config.providers", config).text == "file,dir,env"


def test_a_secret_is_shown_neither_to_clients_nor_in_a_refusal() -> None:
    config = load(loaded(ssl_key_password="${env:MAGNETAR_SECRET}")).config
    assert describe_broker_setting("ssl.key.password", config).text is None
    for name in ("num_partitions", "listeners_", "ssl_client_auth", "cleanup_policy"):
        try:
            _, warnings = load(loaded(**{name: "${env:MAGNETAR_SECRET}"}))
        except ConfigError as refusal:
            told = str(refusal)
        else:
            told = " ".join(warnings)
        assert told
        assert "from the environment" not in told


def test_a_missing_value_is_told_with_its_place_and_setting() -> None:
    with pytest.raises(ConfigError, match=r"line 1: ssl.key.password: \$\{env:NOT\} has no value"):
        load(loaded(ssl_key_password="${env:NOT}"))


def test_a_clients_settings_take_them_too() -> None:
    given = {**PROVIDERS, "sasl.password": "${env:MAGNETAR_SECRET}"}
    assert resolved(given)["sasl.password"] == "from the environment"
    with pytest.raises(ProviderFailed, match=r"sasl.password: \$\{env:NOT\} has no value"):
        resolved({**PROVIDERS, "sasl.password": "${env:NOT}"})
