"""The thread of a client that blocks: it ends with the client, and leaves nothing behind if nobody closes it."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading

import pytest

from roster.client import Admin, ClosedError
from roster.client.loop import LoopThread


@pytest.fixture(scope="module", autouse=True)
def orders(admin: Admin) -> None:
    admin.create_topic("orders", 2)


ADMIN = """
from roster.client import Admin
admin = Admin(sys.argv[1])
print(admin.list_topics()["orders"])
"""
MEMBER = """
from roster.client import GroupMember
member = GroupMember(sys.argv[1], "forgotten", ["orders"])
member.start()
print(len(member.ownership().partitions))
"""
CLOSED_AT_EXIT = """
import atexit
from roster.client import Admin, GroupMember
admin, member = Admin(sys.argv[1]), GroupMember(sys.argv[1], "closed", ["orders"])
atexit.register(admin.close)
atexit.register(member.close)
admin.list_topics()  # Python 3.12.1 starts no thread in a callback at exit
member.start()
atexit.register(lambda: print(admin.list_topics()["orders"]))
"""
FAILED = MEMBER.replace("forgotten", "failed") + "sys.exit(3)\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("script", "printed", "code"),
    [(ADMIN, "2\n", 0), (MEMBER, "2\n", 0), (CLOSED_AT_EXIT, "2\n", 0), (FAILED, "2\n", 3)],
    ids=["an admin", "a member", "closed by atexit", "a member and an exit code"],
)
def test_a_script_that_forgets_to_close_ends_without_a_word(
    bootstrap: str, script: str, printed: str, code: int
) -> None:
    command = [sys.executable, "-c", f"import sys\n{script}", bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, printed, "")


def test_a_forgotten_client_is_collected_with_its_thread(bootstrap: str) -> None:
    before = set(threading.enumerate())
    clients = [Admin(bootstrap)]
    clients[0].list_topics()
    (thread,) = {each for each in threading.enumerate() if each.name == "roster-admin"} - before

    def forget() -> None:
        clients.clear()
        gc.collect()

    with pytest.warns(ResourceWarning, match="roster-admin was not closed"):
        forget()
    thread.join(60)
    assert not thread.is_alive()


def test_what_runs_on_a_loop_that_is_stopped_ends_before_stop_returns() -> None:
    loop = LoopThread("tried")
    ended = []

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            ended.append(True)

    async def begin() -> None:
        tasks.append(asyncio.create_task(never()))
        await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    loop.call(begin())
    loop.stop()
    loop.stop()
    assert ended == [True]
    with pytest.raises(ClosedError):
        loop.call(begin())
