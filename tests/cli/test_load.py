"""`roster load`, `topics` and `groups` on Roster's own broker: what is in the file is in the topic, once, in order."""

from __future__ import annotations

import json
import random
import signal
import string
import subprocess
import sys
import threading
import time
from collections import defaultdict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, TopicPartition

from roster.cli.load import command
from roster.cli.load.producer import RECORD_OVERHEAD, Producer, Tally
from roster.cli.load.source import make_records
from roster.cli.options import Target
from roster.cli.root import run
from roster.testing.broker import BrokerProcess, running_broker


@pytest.fixture(scope="module")
def bootstrap():
    with running_broker() as broker:
        yield broker.bootstrap


def records(bootstrap: str, topic: str, partitions: int, count: int) -> list[tuple[int, int, bytes | None, dict]]:
    """(partition, offset, key, value) of all records, and no more than there should be."""
    settings = {"group.id": "reads", "enable.partition.eof": True, "fetch.wait.max.ms": 10}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found, ended = [], set()
    deadline = time.monotonic() + 60
    while len(ended) < partitions and time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.2):
            if message.error() is not None:
                ended.add(message.partition())
            else:
                found.append((message.partition(), message.offset(), message.key(), json.loads(message.value())))
    consumer.close()
    assert len(found) == count
    return found


def test_a_file_arrives_whole_in_order_within_each_key(bootstrap, tmp_path, capsys):
    lines = ["name,n"] + [f"k{n % 7},{n}" for n in range(5000)]
    (tmp_path / "f.csv").write_text("\n".join(lines))
    arguments = ["load", str(tmp_path / "f.csv"), "--topic", "whole", "--key", "name", "--partitions", "3"]
    assert run([*arguments, "--bootstrap", bootstrap]) == 0
    assert capsys.readouterr().out.startswith("whole: 5000 records acknowledged in ")
    by_key = defaultdict(list)
    places = defaultdict(set)
    for partition, _, key, value in sorted(records(bootstrap, "whole", 3, 5000), key=lambda record: record[:2]):
        assert value["name"] == key.decode()
        by_key[key].append(value["n"])
        places[key].add(partition)
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert all(len(partitions) == 1 for partitions in places.values())
    assert sorted(n for numbers in by_key.values() for n in numbers) == list(range(5000))


def test_without_a_key_records_have_none(bootstrap, tmp_path):
    (tmp_path / "f.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    arguments = ["load", str(tmp_path / "f.jsonl"), "--topic", "keyless", "--partitions", "1", "--bootstrap", bootstrap]
    assert run(arguments) == 0
    assert [(key, value) for _, _, key, value in records(bootstrap, "keyless", 1, 2)] == [
        (None, {"a": 1}),
        (None, {"a": 2}),
    ]


def test_progress_and_result_for_machines(bootstrap, tmp_path, capsys):
    (tmp_path / "f.csv").write_text("a\n1\n2\nx,y\n")
    arguments = ["load", str(tmp_path / "f.csv"), "--topic", "machine", "--partitions", "2", "--bootstrap", bootstrap]
    assert run([*arguments, "--json", "--skip-bad-rows"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last.items() >= {"sent": 2, "acknowledged": 2, "failed": 0, "bad_rows": 1, "done": True}.items()


def test_a_topic_that_is_not_there_or_has_other_partitions_is_named(bootstrap, tmp_path, capsys):
    (tmp_path / "f.csv").write_text("a\n1\n")
    arguments = ["load", str(tmp_path / "f.csv"), "--bootstrap", bootstrap, "--topic"]
    assert run([*arguments, "nowhere"]) == 2
    assert "--topic: no topic 'nowhere' at" in capsys.readouterr().err
    assert run([*arguments, "here", "--partitions", "2"]) == 0
    assert run([*arguments, "here", "--partitions", "3"]) == 2
    assert "--partitions: topic 'here' has 2, not 3" in capsys.readouterr().err
    assert run([*arguments, "here"]) == 0


@pytest.mark.usefixtures("missing_at_once")
def test_a_bad_row_means_nothing_is_sent(bootstrap, tmp_path, capsys):
    (tmp_path / "f.csv").write_text("a\n" + "1\n" * 1000 + "1,2\n")
    arguments = ["load", str(tmp_path / "f.csv"), "--topic", "unsent", "--partitions", "1", "--bootstrap", bootstrap]
    assert run(arguments) == 2
    assert "line 1002" in capsys.readouterr().err
    assert run(["topics", "describe", "unsent", "--bootstrap", bootstrap]) == 2


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_record_larger_than_the_topic_takes_means_nothing_is_sent(bootstrap, tmp_path, capsys, form):
    topic, path = f"large-{form}", tmp_path / f"f.{form}"
    texts = ["a", 'b"\n', "x" * 990_000, "c"]
    if form == "csv":
        path.write_text('t\na\n"b""\n"\n' + texts[2] + "\nc\n")
    elif form == "jsonl":
        path.write_text("".join(json.dumps({"t": text}) + "\n" for text in texts))
    else:
        pq.write_table(pa.table({"t": texts}), path)
    where = {"csv": "line 5", "jsonl": "line 3", "parquet": "row 3"}[form]
    assert run(["topics", "create", topic, "--config", "max.message.bytes=900000", "--bootstrap", bootstrap]) == 0
    arguments = ["load", str(path), "--topic", topic, "--bootstrap", bootstrap]
    capsys.readouterr()
    assert run(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    size = 990_000 + len(b'{"t": ""}')
    assert f"f.{form} {where}: makes a record of {size} bytes, the topic takes 899872 (max.message.bytes)" in line
    records(bootstrap, topic, 1, 0)
    assert run([*arguments, "--skip-bad-rows", "--json"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["acknowledged"], last["failed"], last["bad_rows"]) == (3, 0, 1)
    assert [value["t"] for *_, value in records(bootstrap, topic, 1, 3)] == [texts[0], texts[1], texts[3]]


def test_a_record_as_large_as_the_topic_takes_is_sent(bootstrap, tmp_path, capsys):
    """Of random characters, which compression does not make smaller."""
    room = 2_000_000 - RECORD_OVERHEAD - len('{"t": ""}')
    text = "".join(random.Random(1).choices(string.ascii_letters + string.digits, k=room))
    (tmp_path / "f.jsonl").write_text(f'{{"t": "{text}"}}\n')
    run(["topics", "create", "just", "--config", "max.message.bytes=2000000", "--bootstrap", bootstrap])
    assert run(["load", str(tmp_path / "f.jsonl"), "--topic", "just", "--bootstrap", bootstrap]) == 0
    assert "just: 1 record" in capsys.readouterr().out


def loads(bootstrap: str, topic: str, shell: str, *arguments: str, given: bytes | None = None):
    """`roster load` behind a shell's redirections."""
    command = [sys.executable, "-m", "roster", "load", *arguments, "-t", topic, "--partitions", "1", "-b", bootstrap]
    return subprocess.run(["sh", "-c", shell, "sh", *command], input=given, capture_output=True, check=False)


@pytest.mark.process
@pytest.mark.parametrize("file", ["-", "/dev/stdin"])
@pytest.mark.gate
def test_standard_input_is_checked_whole_before_anything_is_sent(bootstrap, file):
    topic = f"stdin{file.count('/')}"
    good = b"a\n" + b"1\n" * 5000
    done = loads(bootstrap, topic, '"$@"', file, "--format", "csv", given=good + b"1,2\n")
    assert done.returncode == 2
    assert f"{'standard input' if file == '-' else file} line 5002: 2 columns" in done.stderr.decode()
    done = loads(bootstrap, topic, '"$@"', file, "--format", "csv", given=good)
    assert done.returncode == 0, done.stderr
    assert len(records(bootstrap, topic, 1, 5000)) == 5000


@pytest.mark.process
def test_a_pipe_without_a_format_names_the_option(bootstrap):
    done = loads(bootstrap, "none", 'echo | "$@"', "-")
    assert done.returncode == 2
    assert b"--format: standard input has no name to tell the format by" in done.stderr


@pytest.mark.process
def test_the_reason_for_waiting_is_shown(bootstrap, tmp_path):
    """A limit on the size of files stands for a full disk: the write fails, and the broker serves on."""
    program = [sys.executable, "-m", "roster"]
    limited = subprocess.Popen(
        [
            "sh",
            "-c",
            'ulimit -f 2000; exec "$@"',
            "sh",
            *program,
            "broker",
            "--listen",
            "127.0.0.1:0",
            "--data",
            "data",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path,
    )
    try:
        address = limited.stdout.readline().split()[-1]
        (tmp_path / "f.jsonl").write_text(
            "".join(f'{{"n": "{random.Random(n).randbytes(400).hex()}"}}\n' for n in range(6000))
        )
        loader = subprocess.Popen(
            [*program, "load", "f.jsonl", "-t", "t", "--partitions", "1", "-b", address, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=tmp_path,
        )
        try:
            lines = (json.loads(line) for line in loader.stdout)
            waiting = next(line for line in lines if "waiting" in line)
        finally:
            loader.kill()
            loader.communicate()
    finally:
        limited.kill()
        limited.communicate()
    assert waiting["waiting"] == "KAFKA_STORAGE_ERROR"
    assert waiting["acknowledged"] < 6000


def test_ctrl_c_is_one_line_and_what_is_acknowledged_stays(bootstrap, tmp_path, capsys, monkeypatch):
    seen: list[int] = []

    class Interrupted(command._Reporter):
        def __call__(self, tally: Tally) -> None:
            seen.append(tally.acknowledged)
            if tally.acknowledged > 20:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(command, "_Reporter", Interrupted)
    (tmp_path / "f.csv").write_text("a\n" + "1\n" * 5000)
    arguments = ["load", str(tmp_path / "f.csv"), "-t", "interrupted", "--partitions", "1", "--rate", "500"]
    assert run([*arguments, "-b", bootstrap]) == 130
    (line,) = capsys.readouterr().err.split("\n\n")[0].strip().splitlines()
    assert line == f"roster: interrupted: {seen[-1]} of 5000 acknowledged"
    run(["topics", "list", "--json", "-b", bootstrap])
    (offsets,) = (t["offsets"] for t in json.loads(capsys.readouterr().out) if t["topic"] == "interrupted")
    assert seen[-1] <= offsets <= seen[-1] + 500


def test_a_broker_that_refuses_for_good_ends_the_load_with_the_reason(bootstrap, tmp_path, capsys, monkeypatch):
    """The topic takes less than the command was told, as when its setting changed meanwhile."""
    monkeypatch.setattr(command, "_look_up_topic", lambda *_: 1_000_000)
    run(["topics", "create", "less", "--config", "max.message.bytes=5000", "--bootstrap", bootstrap])
    lines = [{"t": text * 20} for text in ("a", "b")] + [{"t": random.Random(1).randbytes(9000).hex()}]
    (tmp_path / "f.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    capsys.readouterr()
    assert run(["load", str(tmp_path / "f.jsonl"), "--topic", "less", "--bootstrap", bootstrap]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("roster: error: 1 of 3 records were not delivered: less-0: MESSAGE_TOO_LARGE")


def test_records_without_a_key_are_spread_over_the_partitions(bootstrap, tmp_path):
    (tmp_path / "f.csv").write_text("a\n" + "".join(f"{n:040}\n" for n in range(5000)))
    arguments = ["load", str(tmp_path / "f.csv"), "--topic", "spread", "--partitions", "3", "--bootstrap", bootstrap]
    assert run(arguments) == 0
    found = defaultdict(int)
    for partition, *_ in records(bootstrap, "spread", 3, 5000):
        found[partition] += 1
    assert sorted(found) == [0, 1, 2]
    assert min(found.values()) > 1000


def test_the_rate_is_kept_however_the_file_is_cut_into_batches(bootstrap):
    run(["topics", "create", "slow", "--bootstrap", bootstrap])
    tally = Tally(60)
    batches = [make_records([None], [b"{}"]), make_records([None] * 59, [b"{}"] * 59)]
    Producer(Target(bootstrap), "slow", tally, lambda _: None).send(batches, 100.0)
    assert tally.acknowledged == 60
    assert tally.seconds >= 0.6


def test_lost_time_is_not_made_up_for_by_sending_faster(bootstrap):
    run(["topics", "create", "late", "--bootstrap", bootstrap])
    tally = Tally(200)
    tally.started -= 60.0  # a minute in which nothing could be sent
    at = tally.seconds
    Producer(Target(bootstrap), "late", tally, lambda _: None).send([make_records([None] * 200, [b"{}"] * 200)], 100.0)
    assert tally.seconds - at >= 0.9  # two seconds' worth, less the one that may be made up for


@pytest.mark.process
def test_a_broker_killed_with_9_and_restarted_under_a_load_makes_no_record_double_or_lost(tmp_path):
    lines = ["n"] + [str(n) for n in range(6000)]
    (tmp_path / "f.csv").write_text("\n".join(lines))
    with BrokerProcess(tmp_path / "data") as broker:
        arguments = ["load", str(tmp_path / "f.csv"), "--topic", "t", "--partitions", "2", "--rate", "3000"]
        codes: list[int] = []
        tally_seen = threading.Event()
        loader = threading.Thread(target=lambda: codes.append(_load(arguments, broker.bootstrap, tally_seen)))
        loader.start()
        assert tally_seen.wait(60)
        broker.kill()
        broker.start()
        loader.join(120)
        assert codes == [0]
        found = sorted(value["n"] for *_, value in records(broker.bootstrap, "t", 2, 6000))
    assert found == list(range(6000))


def _load(arguments: list[str], bootstrap: str, some_acknowledged: threading.Event) -> int:
    """The command without its process: signals belong to the main thread."""
    from roster.cli.load import command as module

    class Watching(module.Tally):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "acknowledged" and value:
                some_acknowledged.set()

    before, module.Tally = module.Tally, Watching
    try:
        module.load.main(args=[*arguments[1:], "--bootstrap", bootstrap], standalone_mode=False)
    finally:
        module.Tally = before
    return 0


def test_topics_and_groups_on_the_real_thing(bootstrap, tmp_path, capsys):
    def answer(*arguments: str) -> str:
        assert run([*arguments, "--bootstrap", bootstrap]) == 0
        return capsys.readouterr().out

    answer("topics", "create", "real", "--partitions", "2")
    (tmp_path / "f.csv").write_text("a\n" + "1\n" * 10)
    answer("load", str(tmp_path / "f.csv"), "--topic", "real", "--key", "a")
    assert {"topic": "real", "partitions": 2, "offsets": 10} in json.loads(answer("topics", "list", "--json"))

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "real", "auto.offset.reset": "earliest"})
    consumer.subscribe(["real"])
    deadline = time.monotonic() + 60
    left = 10
    while left and time.monotonic() < deadline:
        left -= len(consumer.consume(left, 0.5))
    consumer.commit(asynchronous=False)
    described = json.loads(answer("groups", "describe", "real", "--json"))
    assert described["state"] == "Stable"
    assert described["members"][0]["assignment"] == [["real", 0], ["real", 1]]
    assert described["lag"] == 0
    assert run(["groups", "delete", "real", "--yes", "--bootstrap", bootstrap]) == 2
    assert "real" in capsys.readouterr().err
    consumer.close()
    answer("groups", "reset", "real", "--topic", "real", "--to", "earliest", "--yes")
    assert sum(row["lag"] for row in json.loads(answer("groups", "describe", "real", "--json"))["partitions"]) == 10
    assert answer("groups", "delete", "real", "--yes") == "deleted real\n"
    assert answer("topics", "grow", "real", "5") == "real: 2 -> 5 partitions\n"
    assert answer("topics", "delete", "real", "--yes") == "deleted real\n"
