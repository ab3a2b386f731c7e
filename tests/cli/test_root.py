"""The command tree: fast help, one line for a mistake, the exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from roster.cli.root import COMMANDS, roster, run


def lines(capsys) -> list[str]:
    return capsys.readouterr().err.splitlines()


@pytest.mark.process
def test_help_imports_no_command():
    code = (
        "import sys; from roster.cli.root import run; code = run(['--help']); "
        "heavy = {'pyspark', 'pyarrow', 'confluent_kafka', 'rich', 'asyncio', 'numpy', 'pandas'} & set(sys.modules); "
        "assert code == 0 and not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", ["topics", "groups", "load", "demo"])
def test_each_command_has_help(name, capsys):
    assert run([name, "--help"]) == 0
    assert "Usage: roster" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "No such command 'nonsense' (see `roster --help`)"),
        (["topic", "list"], "No such command 'topic'. Did you mean 'topics'? (see `roster --help`)"),
        (["topics", "lst"], "No such command 'lst'. Did you mean 'list'? (see `roster topics --help`)"),
        (["topics", "create", "t", "-p", "99999999999"], "'-p': 99999999999 is not in the range 1<=x<=2147483647"),
        (["topics", "grow", "t", "99999999999"], "99999999999 is not in the range"),
        (["topics", "create", "t", "--replication", "32768"], "32768 is not in the range"),
        (["topics", "describe", "t\udcff"], "b't\\xff' is not UTF-8"),
        (["groups", "describe", "t\udcff"], "b't\\xff' is not UTF-8"),
        (["groups", "describe", ""], "must not be empty"),
        (["load", "x.csv", "--topic", "t", "--rate", "nan"], "nan is not a finite number"),
        (["load", "x.csv", "--topic", "t", "--rate", "inf"], "inf is not in the range"),
        (["demo", "--deadline", "nan"], "nan is not a finite number"),
        (["plan", "-a", "lag-sticky", "--max-skew", "nan"], "--max-skew"),
        (["load", "x.csv"], "Missing option '--topic'"),
        (["load", "no-such.csv", "--topic", "t"], "FILE: no-such.csv is not there"),
        (["load", "x.csv", "--topic", "t", "--key", "a,,b"], "--key 'a,,b'"),
        (["load", "x.csv", "--topic", "t", "--rate", "0"], "'--rate'"),
        (["topics", "list", "--bootstrap", "nowhere"], "'nowhere' is not host:port; add the port, as in nowhere:9092"),
        (["topics", "list", "--bootstrap", "a:1, b:99999"], "'b:99999' is not host:port; the port must be a number"),
        (["topics", "list", "--bootstrap", "PLAINTEXT://a:1"], "is not host:port; leave out PLAINTEXT://"),
        (["topics", "list", "--bootstrap", ","], "no address given; give host and port, as in 127.0.0.1:9092"),
        (["topics", "create", "t", "--partitions", "0"], "'--partitions'"),
        (["topics", "create", "t", "--config", "x"], "--config: 'x' is not NAME=VALUE"),
        (["groups", "reset", "g", "--topic", "t", "--to", "yesterday"], "--to: 'yesterday' is not earliest"),
        (["demo", "--input", "x.csv"], "--key: --input needs the columns"),
        (["demo", "--key", "x"], "--input: --key and --format are for a file of your own"),
        (["demo", "--input", "no-such.csv", "--key", "x"], "--input: no-such.csv is not there"),
        (["demo", "--partitions", "2"], "'--partitions'"),
        (["demo", "--stateful", "--key", "x"], "--stateful: streams the flights; leave --input, --key"),
        (["demo", "--records", "500"], "--records: is for --stateful"),
        (["demo", "--stateful", "--records", "3"], "'--records'"),
    ],
)
def test_a_mistake_is_one_line_naming_the_field_and_exit_code_2(arguments, words, capsys):
    assert run(arguments) == 2
    (line,) = lines(capsys)
    assert line.startswith("roster: error: ")
    assert words in line


def test_a_file_of_the_demo_is_checked_before_anything_starts(tmp_path, capsys):
    (tmp_path / "f.csv").write_text("a\n1\n1,2\n")
    assert run(["demo", "--input", str(tmp_path / "f.csv"), "--key", "x"]) == 2
    assert "--key: no column x in" in capsys.readouterr().err
    assert run(["demo", "--input", str(tmp_path / "f.csv"), "--key", "a"]) == 2
    assert "error: --input: " in (said := capsys.readouterr().err)
    assert "line 3: 2 columns" in said


def test_a_demo_without_java_says_so_before_anything_starts(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert run(["demo"]) == 2
    (line,) = lines(capsys)
    assert line.startswith("roster: error: JAVA_HOME: ")


def test_no_command_shows_the_help_and_exit_code_2(capsys):
    assert run([]) == 2
    assert "Commands:" in capsys.readouterr().err


def test_an_unreachable_broker_is_one_line_and_exit_code_1(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("roster.cli.admin.REQUEST_TIMEOUT_MS", 500)
    (tmp_path / "a.csv").write_text("a\n1\n")
    assert run(["load", str(tmp_path / "a.csv"), "--topic", "t", "--bootstrap", "127.0.0.1:1"]) == 1
    (line,) = lines(capsys)
    assert line.startswith("roster: error: --bootstrap: ")
    assert "127.0.0.1:1" in line


def test_ctrl_c_is_exit_code_130_and_no_traceback(capsys, monkeypatch):
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(roster, "invoke", lambda _: interrupted())
    assert run(["topics", "list"]) == 130
    assert not any(line.strip() for line in lines(capsys))


def test_too_little_memory_is_one_line_and_exit_code_1(capsys, monkeypatch):
    def full(**_) -> None:
        raise MemoryError

    monkeypatch.setattr(roster, "main", full)
    assert run(["topics", "read", "t"]) == 1
    assert lines(capsys) == ["roster: error: there is not enough memory"]


@pytest.mark.process
def test_a_real_sigint_ends_a_waiting_command_with_130(tmp_path):
    (tmp_path / "a.csv").write_text("a\n1\n")
    code = (
        "import sys, time\n"
        "def wait(*_, **__):\n    print('waiting', flush=True)\n    time.sleep(60)\n"
        "import roster.cli.load.command as load\nload._look_up_topic = wait\n"
        f"from roster.cli.root import run; sys.exit(run(['load', {str(tmp_path / 'a.csv')!r}, '--topic', 't']))"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "waiting\n"
    os.kill(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=90)
    assert child.returncode == 130
    assert "Traceback" not in err


def python(*arguments: str, shell: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program of Roster's behind a shell's redirections."""
    command = [sys.executable, "-m", "roster", *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(
        ["sh", "-c", f'"$@" {shell}', "sh", *command], capture_output=True, text=True, check=False, env=env
    )


@pytest.mark.process
def test_the_package_runs_as_a_module():
    done = python("--version", shell="")
    assert (done.returncode, done.stdout.split()[0]) == (0, "roster,")


@pytest.mark.process
def test_closed_standard_output_is_refused_before_anything_is_done():
    done = python("topics", "list", "--bootstrap", "127.0.0.1:1", shell=">&-")
    assert done.returncode == 1
    assert done.stderr == "roster: error: standard output is closed; write >/dev/null to throw the output away\n"


@pytest.mark.process
def test_closed_standard_input_and_error_do_not_matter(tmp_path):
    assert python("--version", shell="<&- 2>&-").returncode == 0
    done = python("users", "remove", "u", "--data", str(tmp_path), shell="<&-")
    assert done.returncode == 2
    assert done.stderr.startswith("roster: error: --yes: ")


def test_the_environment_variable_is_named_when_the_address_came_from_there(capsys, monkeypatch):
    assert run(["topics", "list", "-b", "x"]) == 2
    assert "ROSTER_BOOTSTRAP" not in capsys.readouterr().err
    monkeypatch.setenv("ROSTER_BOOTSTRAP", "x")
    assert run(["topics", "list"]) == 2
    assert "(environment variable ROSTER_BOOTSTRAP): 'x' is not host:port" in capsys.readouterr().err


def test_the_help_says_how_completion_is_switched_on(capsys):
    assert run(["--help"]) == 0
    assert 'eval "$(_ROSTER_COMPLETE=bash_source roster)"' in capsys.readouterr().out
