"""JAAS entries as `sasl.jaas.config` has them."""

from __future__ import annotations

import pytest

from magnetar.config.jaas import parse_jaas

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"{MODULE} required;", {}),
        (f'{MODULE} required user_ada="pw";', {"user_ada": "pw"}),
        (
            f'  {MODULE}  REQUIRED\n user_ada = "a b;c"\n user_bob=plain ; ',
            {"user_ada": "a b;c", "user_bob": "plain"},
        ),
        (rf'{MODULE} required user_ada="say \"pw\\";', {"user_ada": 'say "pw\\'}),
    ],
)
def test_an_entry_is_read(text: str, options: dict[str, str]) -> None:
    assert parse_jaas(text) == options


@pytest.mark.parametrize(
    "text", ["", MODULE, f"{MODULE} sometimes;", f'{MODULE} required user_ada="secret"', "a b c"]
)
def test_a_mistake_is_refused_without_showing_a_password(text: str) -> None:
    with pytest.raises(ValueError, match="is no JAAS entry") as refused:
        parse_jaas(text)
    assert "secret" not in str(refused.value)
