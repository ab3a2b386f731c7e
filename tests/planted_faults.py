"""Thirty faults that a developer new to Roster may well make, and whether `make test` finds each.

    python -m tests.planted_faults [NUMBER …]

Each fault is planted in a copy of `src`; the tests that could find it run as in `make test`: few examples, without
those marked `gate`. The exit code is 1 if fewer than 27 of all thirty are found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import click

ROOT = Path(__file__).parents[1]
LEAST_FOUND = 27


class Fault(NamedTuple):
    """In `file` of src/roster stands `wrong` instead of `right`; `tests`: where it could be found."""

    what: str
    file: str
    right: str
    wrong: str
    tests: str


FAULTS = (
    Fault(
        "a heartbeat of an earlier generation counts",
        "coordinator/heartbeat.py",
        "return group.validate_generation(request.generation_id)",
        "return ErrorCode.NONE",
        "coordinator",
    ),
    Fault(
        "a silent member stays for two sessions",
        "coordinator/heartbeat.py",
        "if ctx.rt.now < member.deadline:",
        "if ctx.rt.now < member.deadline + member.session_timeout_ms:",
        "coordinator",
    ),
    Fault(
        "offsets are committed before the group has its assignment",
        "coordinator/offset_commit.py",
        "ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.COMPLETING else ErrorCode.NONE",
        "ErrorCode.NONE",
        "coordinator",
    ),
    Fault(
        "an offset counts though its write failed",
        "coordinator/offset_store.py",
        "        if not error:\n            for (topic, partition), committed in offsets.items():\n"
        "                group.store_offset",
        "        if True:\n            for (topic, partition), committed in offsets.items():\n"
        "                group.store_offset",
        "coordinator",
    ),
    Fault(
        "a reader that asks for stable offsets gets those of open transactions",
        "coordinator/offset_fetch.py",
        "if stable and group is not None:",
        "if stable and group is None:",
        "coordinator",
    ),
    Fault(
        "a transaction is ended by an epoch that was replaced",
        "transactions/end_transaction.py",
        "if request.producer_epoch != current.producer_epoch and",
        "if request.producer_epoch > current.producer_epoch and",
        "transactions",
    ),
    Fault(
        "an empty value is written as none",
        "wire/records.py",
        'parts += (b"\\x01",) if data is None else',
        'parts += (b"\\x01",) if not data else',
        "wire/test_records.py",
    ),
    Fault(
        "the broker's time of a batch is not that of its records",
        "wire/records.py",
        "return bool(self.attributes & _LOG_APPEND_TIME)",
        "return bool(self.attributes & _TRANSACTIONAL)",
        "wire/test_records.py wire/test_record_columns.py",
    ),
    Fault(
        "with `range` each member may have one partition more than its share",
        "assignors/range.py",
        "return int(self.quota + (self.spare > 0) - self.has[consumer])",
        "return int(self.quota + 1 - self.has[consumer])",
        "assignors/test_worked_cases.py assignors/test_properties.py",
    ),
    Fault(
        "of two claims to a partition that of the older generation wins",
        "assignors/claims.py",
        "order = np.lexsort((generation, partition))",
        "order = np.lexsort((-generation, partition))",
        "assignors",
    ),
    Fault(
        "two commits are in flight at once",
        "member/commit_queue.py",
        "if not self._queue or self._out.in_flight(ApiKey.OFFSET_COMMIT) or self._out.backing_off(COMMIT):",
        "if not self._queue or self._out.backing_off(COMMIT):",
        "member",
    ),
    Fault(
        "a commit of partitions that were lost is sent",
        "member/commit_queue.py",
        "fenced = ownership.fenced(commit.offsets, commit.epoch)",
        "fenced = frozenset()",
        "member",
    ),
    Fault(
        "a member that was expired joins under its old id",
        "member/recovery.py",
        "if action is Action.RESET_MEMBER:\n        me.member_id",
        "if action is not Action.RESET_MEMBER:\n        me.member_id",
        "member",
    ),
    Fault(
        "offset 0 is taken for none",
        "client/offsets.py",
        "None if row.offset < 0 else row.offset",
        "None if row.offset <= 0 else row.offset",
        "client",
    ),
    Fault(
        "a producer's sequence counts batches, not records",
        "records/produce_decisions.py",
        "queue.sequence = (sequence + body.records) % _SEQUENCES",
        "queue.sequence = (sequence + 1) % _SEQUENCES",
        "records",
    ),
    Fault(
        "a throttle time in milliseconds is waited for in seconds",
        "records/produce_decisions.py",
        "now + throttled / 1000",
        "now + throttled",
        "records",
    ),
    Fault(
        "compaction removes the newest record of a key",
        "broker/log/compaction.py",
        "if self._newest.get(_name(span), -1) > offset:",
        "if self._newest.get(_name(span), -1) >= offset:",
        "broker/test_compaction.py",
    ),
    Fault(
        "a torn batch stays at the end of a log",
        "broker/log/recovery.py",
        "        self.segments[-1].truncate()\n",
        "",
        "broker/test_damage.py broker/test_partition_log.py broker/test_restart.py",
    ),
    Fault(
        "an ACL that denies one operation denies nothing",
        "broker/security/authorizer.py",
        "if denied & {operation, AclOperation.ALL}:",
        "if denied >= {operation, AclOperation.ALL}:",
        "broker/test_security_core.py",
    ),
    Fault(
        "the beginning of a token is as good as the token",
        "http/access.py",
        'return hmac.compare_digest(token.encode(errors="replace"), self.token.encode())',
        "return self.token.startswith(token)",
        "http console page/test_watch.py",
    ),
    Fault(
        "a window takes a row at the moment at which it is closed",
        "state/windows.py",
        "is_open = start + size + microseconds(self.window.grace) > stream_times",
        "is_open = start + size + microseconds(self.window.grace) >= stream_times",
        "state/test_windows.py",
    ),
    Fault(
        "a row exactly a gap behind a session is none of it",
        "state/sessions.py",
        "(time[1:] <= limit)",
        "(time[1:] < limit)",
        "state/test_sessions.py",
    ),
    Fault(
        "rows of a join are forgotten by the bounds of the other side",
        "state/stream_join.py",
        "zip(sides, (high, -low), strict=True)",
        "zip(sides, (-low, high), strict=True)",
        "state/test_stream_join.py",
    ),
    Fault(
        "-0.0 and 0.0 are two values",
        "state/keys.py",
        "np.where(np.isnan(values), np.nan, values + 0.0)",
        "np.where(np.isnan(values), np.nan, values)",
        "state",
    ),
    Fault(
        "an export takes offsets amid a transaction",
        "saved/cut.py",
        "return Cut(offsets, stable) if logs.end_offsets(unit) == stable else None",
        "return Cut(offsets, stable)",
        "saved/test_cut.py",
    ),
    Fault(
        "a writer whose position has moved on may commit",
        "sinks/commit_log.py",
        "if claimant == owner.member_id and position == span.start:",
        "if claimant == owner.member_id:",
        "sinks/test_commit_log.py",
    ),
    Fault(
        "positions of partitions that were lost amid a commit are kept",
        "pipeline/driver/batch_run.py",
        "                self.drop_positions(fenced)\n",
        "",
        "pipeline/driver",
    ),
    Fault(
        "a run up to the ends of the topics goes on with what comes",
        "pipeline/driver/loop.py",
        "ends = self._targets.limit(ends) if available_now else dict(ends)",
        "ends = dict(ends)",
        "pipeline/driver",
    ),
    Fault(
        "a dead letter lacks the headers of its record",
        "pipeline/tasks/dead_letters.py",
        "headers = [*_own_headers(row), *self._error_headers(row, error, stage, by)]",
        "headers = self._error_headers(row, error, stage, by)",
        "pipeline/tasks",
    ),
    Fault(
        "a join's strict bound of time takes rows at the bound",
        "spark/dataframes/joins.py",
        "return (times, apart + more, None) if is_least",
        "return (times, apart, None) if is_least",
        "spark/dataframes/test_plans.py spark/dataframes/test_stateful_queries.py",
    ),
)


def is_found(fault: Fault, folder: Path) -> bool:
    """Plant a fault in a copy of `src` in a folder, and return whether a test fails."""
    shutil.rmtree(folder / "src", ignore_errors=True)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "src" / "roster" / fault.file
    text = file.read_text()
    assert text.count(fault.right) == 1, f"{fault.file} has not one {fault.right!r}"
    file.write_text(text.replace(fault.right, fault.wrong))
    options = ["-q", "-x", "-p", "no:cacheprovider", "--timeout=60", "-m", "not gate"]
    command = [sys.executable, "-m", "pytest", *options, *(str(ROOT / "tests" / name) for name in fault.tests.split())]
    environment = os.environ | {"HYPOTHESIS_PROFILE": "quick", "PYTHONPATH": str(folder / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-3000:]
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED tests", "ERROR tests"))]
    click.echo(f"  {failed[0].split(' - ')[0]}" if failed else f"  {done.stdout.splitlines()[-1]}")
    return bool(failed)


@click.command("python -m tests.planted_faults")
@click.argument("numbers", nargs=-1, type=click.IntRange(1, len(FAULTS)))
def main(numbers: tuple[int, ...]) -> None:
    """Plant faults, all of them or those of these numbers."""
    found = 0
    with tempfile.TemporaryDirectory(prefix="roster-faults-") as folder:
        for number in numbers or range(1, len(FAULTS) + 1):
            click.echo(f"{number}. {FAULTS[number - 1].what}")
            found += is_found(FAULTS[number - 1], Path(folder))
    count = len(numbers or FAULTS)
    click.echo(f"{found} of {count} found")
    sys.exit(found < (count if numbers else LEAST_FOUND))


if __name__ == "__main__":
    main()
