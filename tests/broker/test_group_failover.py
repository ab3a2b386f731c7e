"""A group's records on a disk that fails, and coordinators that die, at each write of a rebalance."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from roster.broker import Broker, BrokerFailedError, LogConfig
from roster.broker.log.partition_log import PartitionLog
from roster.broker.stored_records import append_records, read_transactional_records
from roster.testing.broker import BrokerProcess, quick_config, running_broker
from roster.wire import ErrorCode
from roster.wire.messages import HeartbeatRequest, InitProducerIdRequest, JoinGroupRequest, SyncGroupRequest
from tests.broker.rawclient import RawClient
from tests.broker.test_partition_log import NOW
from tests.broker.test_restart import QUICK, address, commit, committed, create, refusal
from tests.coordinator.coordinator_harness import GROUP, LOG_PARTITION, Client, GroupState, subscription
from tests.examples_tried import examples
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from roster.coordinator.events import LoadedRecord

ONE_SEGMENT = LogConfig(segment_bytes=1 << 20, index_interval_bytes=300)


# -- torn, short and corrupt -------------------------------------------------------------------------------------------


def history() -> list[tuple[bytes, bytes | None]]:
    """The records of a group with a static member that goes through four generations and commits."""
    c = Client()
    ids = c.stable_group(None, "i")
    c.commit(ids[0], 1, {("t", 0): 1})
    for generation in (2, 3):
        c.rejoin_all(ids, protocols=(("range", subscription("t", f"u{generation}")),))
        c.sync_all(ids)
        c.commit(ids[0], generation, {("t", 0): generation})
    c.rejoin_all(ids, protocols=(("range", subscription("t")),))
    return c.log[LOG_PARTITION]


def written(directory: Path, records: list[tuple[bytes, bytes | None]]) -> list[int]:
    """Write each record as the broker does; return the size of the segment after each."""
    log = opened(directory)
    sizes = []
    for record in records:
        append_records(log, [record], NOW)
        point = log.begin_flush()
        assert point is not None
        point.sync()
        log.finish_flush(point)
        sizes.append(segment(directory).stat().st_size)
    return sizes


def opened(directory: Path) -> PartitionLog:
    directory.mkdir(exist_ok=True)
    log = PartitionLog(directory, ONE_SEGMENT)
    log.open(NOW)
    return log


def segment(directory: Path) -> Path:
    (path,) = directory.glob("*.log")
    return path


def loaded(directory: Path) -> tuple[LoadedRecord, ...]:
    log = opened(directory)
    return read_transactional_records(log) if log.high_watermark else ()


def check_that_the_group_goes_on(records: tuple[LoadedRecord, ...]) -> None:
    """What the log says is kept, and members that know of nothing get the group Stable again."""
    c = Client(load=records)  # type: ignore[arg-type]
    group = c.coordinator.group(GROUP)
    generation, offsets = (group.generation, c.fetched()) if group is not None else (0, {})
    member = c.join(version=3)
    while member.parked:  # until the members of before are gone
        c.advance(500)
    assert member.reply.generation_id > generation
    c.sync_all([member.reply.member_id])
    assert c.state is GroupState.STABLE
    assert offsets.items() <= c.fetched().items()


@pytest.mark.parametrize("damage", ["cut", "garbage", "zeroes"])
def test_a_write_that_was_torn_at_any_byte_leaves_the_records_before_it(tmp_path: Path, damage: str) -> None:
    records = history()
    sizes = written(tmp_path / "whole", records)
    every = range(sizes[0], sizes[-1])
    for position in sorted(random.Random(damage).sample(every, examples(40, "ROSTER_FAILOVERS"))):
        directory = tmp_path / f"{position}"
        shutil.copytree(tmp_path / "whole", directory)
        path = segment(directory)
        for other in directory.iterdir():
            if other != path:
                other.unlink()  # a crash leaves no index that knows of the write
        tail = {"cut": b"", "garbage": random.Random(position).randbytes(30), "zeroes": bytes(30)}[damage]
        whole = path.read_bytes()
        path.write_bytes(whole[:position] + tail)
        complete = sum(size <= position for size in sizes)
        found = loaded(directory)
        assert found == tuple(records[:complete])
        check_that_the_group_goes_on(found)
        shutil.rmtree(directory)


# -- disks that refuse -------------------------------------------------------------------------------------------------


def join_request(member_id: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=6_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        group_instance_id="i",
        protocol_type="consumer",
        protocols=[JoinGroupRequest.Protocol(name="range", metadata=subscription("t"))],
    )


def sync_request(generation: int, member_id: str) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id="g",
        generation_id=generation,
        member_id=member_id,
        group_instance_id="i",
        assignments=[SyncGroupRequest.Assignment(member_id=member_id, assignment=b"all")],
    )


def rebalance(client: RawClient) -> tuple[int, str]:
    """Join as the static member and sync; return generation and member id."""
    while (joined := client.ask(join_request(), 5)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        pass
    assert joined.error_code == ErrorCode.NONE
    synced = client.ask(sync_request(joined.generation_id, joined.member_id), 3)
    assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"all")
    return joined.generation_id, joined.member_id


def outcome(client: RawClient, group: str, offset: int) -> int:
    """Commit once the group is loaded; return the error code."""
    while (code := commit(client, group, "t", offset)) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        pass
    return code


def with_broker(directory: Path, talk: Callable[[RawClient], Any]) -> Broker:
    """Have a client talk to a broker on this directory."""

    async def run() -> Broker:
        async with Broker(quick_config(directory)) as broker:

            def connected() -> None:
                with RawClient(broker.address) as client:
                    talk(client)

            await asyncio.to_thread(connected)
            return broker

    return asyncio.run(run())


@pytest.mark.parametrize("failing", [1, 2])
def test_a_sync_of_the_disk_that_fails_acknowledges_neither_generation_nor_assignment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Of the record of the generation, then of that of the assignment; the next broker goes on with what is there."""
    from roster.broker.log import open_files

    syncs = 0
    real = open_files.sync_file

    def sync_file(fd: int) -> None:
        nonlocal syncs
        syncs += 1
        if syncs == failing:
            raise OSError(5, "Input/output error")
        real(fd)

    def fails(client: RawClient) -> None:
        create(client, "t")
        assert outcome(client, "g", 1) == ErrorCode.NONE
        monkeypatch.setattr(open_files, "sync_file", sync_file)
        joined = client.ask(join_request(), 5)
        if joined.error_code == ErrorCode.NONE:
            assert failing == 2
            request = sync_request(joined.generation_id, joined.member_id)
            assert client.ask(request, 3).error_code == ErrorCode.NOT_COORDINATOR
        else:
            assert joined.error_code == ErrorCode.NOT_COORDINATOR
        assert outcome(client, "g", 2) != ErrorCode.NONE, "nothing is acknowledged any more"

    with_broker(tmp_path, fails)
    monkeypatch.undo()
    generations = []
    with_broker(tmp_path, lambda client: generations.append(rebalance(client)[0]))
    assert generations[0] >= 1


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_record_that_does_not_fit_on_the_disk_is_refused_and_the_broker_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """The record of a generation, of its assignment, of the static member's next id."""
    from roster.broker import shell

    appends = 0
    real = shell.append_records

    def append(*arguments: Any) -> None:
        nonlocal appends
        appends += 1
        if appends == failing:
            raise OSError(28, "No space left on device")
        real(*arguments)

    def talk(client: RawClient) -> None:
        create(client, "t")
        assert outcome(client, "g", 1) == ErrorCode.NONE
        monkeypatch.setattr(shell, "append_records", append)
        errors = []
        for _ in range(3):
            joined = client.ask(join_request(), 5)
            errors.append(joined.error_code)
            if joined.error_code == ErrorCode.NONE:
                request = sync_request(joined.generation_id, joined.member_id)
                errors.append(client.ask(request, 3).error_code)
        assert errors[-2:] == [ErrorCode.NONE, ErrorCode.NONE]
        assert appends > failing
        assert ErrorCode.NOT_COORDINATOR in errors

    with_broker(tmp_path, talk)
    with_broker(tmp_path, rebalance)


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_records_that_cannot_be_decoded_are_said_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, topic: str
) -> None:
    with running_broker(tmp_path) as broker, RawClient(broker.address) as client:
        client.ask(InitProducerIdRequest(transactional_id="a", transaction_timeout_ms=1000), 1)
    assert "cannot be decoded" not in caplog.text
    written(tmp_path / "topics" / topic / "49", [(b"", None), (b"\x00", b"x")])
    with running_broker(tmp_path):
        until(lambda: f"2 records of {topic} cannot be decoded: what they hold is lost" in caplog.text)


# -- an old coordinator ------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_an_old_coordinator_that_wakes_up_acknowledges_nothing(tmp_path: Path) -> None:
    """It was stopped; its directory was moved, and another broker runs on a copy of it."""
    data = tmp_path / "data"
    old = BrokerProcess(data, *QUICK)
    with old, RawClient(address(old)) as client:
        create(client, "t")
        generation, member = rebalance(client)
        assert outcome(client, "h", 1) == ErrorCode.NONE
        os.kill(old.pid, signal.SIGSTOP)
        assert "in use by another broker" in refusal(tmp_path, "--listen", "127.0.0.1:0", "--data", str(data))
        data.rename(tmp_path / "moved")
        shutil.copytree(tmp_path / "moved", data)
        with BrokerProcess(data, *QUICK) as new, RawClient(address(new)) as other:
            assert committed(other, "h") == {"t": 1}
            assert outcome(other, "h", 2) == ErrorCode.NONE
            os.kill(old.pid, signal.SIGCONT)
            with suppress(ConnectionError):  # it may be gone before it answers
                assert outcome(client, "h", 9) != ErrorCode.NONE
            with suppress(ConnectionError):
                assert client.ask(join_request(), 5).error_code != ErrorCode.NONE
            assert committed(other, "h") == {"t": 2}
            beat = HeartbeatRequest(group_id="g", generation_id=generation, member_id=member, group_instance_id="i")
            assert other.ask(beat, 4).error_code == ErrorCode.NONE


def test_a_directory_that_was_replaced_under_the_broker_is_said(tmp_path: Path) -> None:
    data = tmp_path / "data"

    async def run() -> BrokerFailedError:
        async with Broker(quick_config(data)) as broker:

            def talk() -> None:
                with RawClient(broker.address) as client:
                    create(client, "t")
                    data.rename(tmp_path / "moved")
                    assert outcome(client, "g", 1) == ErrorCode.NOT_COORDINATOR

            await asyncio.to_thread(talk)
            return await broker.failed()

    assert "was moved or replaced under the running broker" in str(asyncio.run(run()))
