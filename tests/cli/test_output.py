"""Tables for people: one line a row in a pipe, and what a narrow terminal does to them."""

from __future__ import annotations

import os

import pytest

from roster.cli.groups.describe import member_labels
from roster.cli.output import print_table
from roster.client import MemberDescription


@pytest.fixture
def terminal(monkeypatch):
    """Let standard output be a terminal of so many columns."""

    def set_width(columns: int) -> None:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        monkeypatch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((columns, 24)))

    return set_width


def printed(capsys, *arguments, **options) -> list[str]:
    print_table(*arguments, **options)
    return capsys.readouterr().out.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()


def test_numbers_stand_to_the_right_and_none_is_a_dash(capsys):
    rows = [("a", 5, "x"), ("bb", None, "y"), ("c", 1234, "z")]
    assert printed(capsys, ("name", "n", "t"), rows, "") == [
        "name     n  t",
        "a        5  x",
        "bb       -  y",
        "c     1234  z",
    ]
    assert printed(capsys, ("name",), [], "no rows") == ["no rows"]


def test_a_pipe_gets_every_character_on_one_line(capsys):
    (_, line) = printed(capsys, ("id", "why"), [("i" * 300, "because " * 100)], "", shorten=("id",))
    assert line == "i" * 300 + "  " + ("because " * 100).rstrip()


def test_rows_behind_the_sample_are_printed_too(capsys):
    lines = printed(capsys, ("name", "n"), ((f"t{n}", n) for n in range(3000)), "")
    assert [line.split() for line in lines[1:]] == [[f"t{n}", str(n)] for n in range(3000)]
    wide = printed(capsys, ("name", "n"), ((name, 1) for name in ["a"] * 2000 + ["wider than the others"]), "")
    assert wide[-1] == "wider than the others  1"


@pytest.mark.parametrize("columns", [80, 60, 40])
def test_a_narrow_terminal_cuts_ids_and_no_numbers(capsys, terminal, columns):
    terminal(columns)
    rows = [("orders-with-a-long-name", 11, 1_234_567, "client-18f6d09c-46a3"), ("東京" * 8, 3, None, "client-0")]
    lines = printed(capsys, ("topic", "partition", "lag", "member"), rows, "", shorten=("topic", "member"))
    assert len(lines) == 3
    assert all(len(line) <= columns for line in lines[:2])
    assert "1234567" in lines[1]
    assert ("…" in lines[1]) == (columns < 63)
    assert [line.split()[1] for line in lines[1:]] == ["11", "3"]


def test_prose_is_folded_under_itself(capsys, terminal):
    terminal(50)
    lines = printed(
        capsys, ("topic", "why"), [("orders", "balance: one had four partitions and keeps two of them")], ""
    )
    assert lines == [
        "topic   why",
        "orders  balance: one had four partitions and keeps",
        "        two of them",
    ]


def test_control_characters_of_names_do_not_reach_the_terminal(capsys):
    assert printed(capsys, ("client",), [("a\x1b[2Jb\nc",)], "")[1:] == ["a\\x1b[2Jb\\nc"]


def member(member_id: str, client: str = "client", instance: str | None = None) -> MemberDescription:
    return MemberDescription(member_id, instance, client, "/127.0.0.1")


def test_long_member_ids_are_cut_to_what_tells_them_apart():
    first, second = "client-18f6d09c-46a3-4c1b", "client-18f6d09c-46a3-9999"
    labels = member_labels([member(first), member(second), member("short"), member("x" * 40, instance="static-1")])
    assert labels == {
        first: "client-18f6d09c-46a3-4…",
        second: "client-18f6d09c-46a3-9…",
        "short": "short",
        "x" * 40: "static-1",
    }
    uuid = "roster-8a1c5b6e-0000-4000-8000-000000000000"
    assert member_labels([member(uuid, "roster")]) == {uuid: "roster-8a1c5b…"}
    static = [member(f"m{n}", instance=f"a-service-of-some-region-instance-{n}") for n in range(2)]
    assert list(member_labels(static).values()) == ["…-some-region-instance-0", "…-some-region-instance-1"]
    twins = [member(f"m{n}", instance=f"{n}-of-" + "x" * 30) for n in range(2)]
    assert list(member_labels(twins).values()) == [f"{n}-of-" + "x" * 30 for n in range(2)]
    long_client = "an-application-with-a-long-name"
    label = member_labels([member(f"{long_client}-18f6d09c-46a3", long_client)])[f"{long_client}-18f6d09c-46a3"]
    assert label == "an-applicatio…-18f6d0…"
