"""Shell of a member: carries out the effects of its state machine: requests, timers, the assignment by the leader."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from random import Random

from roster.client.cluster import Cluster
from roster.client.coordinators import Coordinators
from roster.client.errors import AuthenticationError, ClientError, UnsupportedError
from roster.client.offsets import partition_offsets
from roster.member.assign_group import assign_group
from roster.member.config import MemberConfig
from roster.member.events import (
    Assign,
    Assigned,
    AssignFailed,
    CommitDone,
    Disconnect,
    Effect,
    Event,
    FetchOffsets,
    OffsetsFetched,
    Publish,
    Report,
    RequestFailed,
    Responded,
    Send,
    Stopped,
    TimerExpired,
)
from roster.member.member import Member
from roster.member.timers import HEARTBEAT, TimerName
from roster.model import CancelTimer, SetTimer
from roster.wire.messages import MetadataResponse


class MemberShell:
    """One member on the running event loop.

    `on_effect` gets what concerns the application, in order; `after_step` runs when a step's effects are under way;
    `on_heartbeat` gets the seconds by which a heartbeat is late.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: MemberConfig,
        chance: Random,
        on_effect: Callable[[Publish | CommitDone | Report | Stopped], None],
        after_step: Callable[[Member], None],
        on_heartbeat: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.member = Member(config, chance)
        self._cluster = cluster
        self._coordinators = Coordinators(cluster)
        self._on_effect = on_effect
        self._after_step = after_step
        self._on_heartbeat = on_heartbeat
        self._timers: dict[TimerName, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._assigning = ThreadPoolExecutor(max_workers=1, thread_name_prefix="roster-assign")

    def feed(self, event: Event) -> None:
        """Step the member with an event and carry out its effects."""
        for effect in self.member.step(event, self._now()):
            self._carry_out(effect)
        self._after_step(self.member)

    def _now(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._start(self._send(effect))
            case SetTimer(name, deadline):
                self._cancel_timer(name)
                loop = asyncio.get_running_loop()
                self._timers[name] = loop.call_at((deadline + 1) / 1000, self._expired, name)
            case CancelTimer(name):
                self._cancel_timer(name)
            case Assign():
                self._start(self._assign(effect))
            case FetchOffsets():
                self._start(self._fetch_offsets(effect))
            case Disconnect(node):
                self._cluster.disconnect(node)
            case Publish() | CommitDone() | Report() | Stopped():
                self._on_effect(effect)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, send: Send) -> None:
        timeout = send.timeout_ms / 1000
        try:
            if send.to is None:
                response = await self._cluster.request_any(send.message, timeout)
            else:
                response = await self._cluster.request(send.to, send.message, timeout, send.channel)
        except UnsupportedError as error:
            self.feed(RequestFailed(send.id, str(error), unsupported=True))
        except AuthenticationError as error:
            self.feed(RequestFailed(send.id, str(error), refused=True))
        except ClientError as error:
            self.feed(RequestFailed(send.id, str(error)))
        else:
            if isinstance(response, MetadataResponse):
                self._cluster.learn(response)
            self.feed(Responded(send.id, response))

    async def _fetch_offsets(self, wanted: FetchOffsets) -> None:
        timeout = wanted.timeout_ms / 1000
        try:
            offsets = await partition_offsets(
                self._cluster, self._coordinators, wanted.group, wanted.partitions, timeout
            )
        except TimeoutError:
            self.feed(OffsetsFetched(wanted.id, None, f"the offsets did not come within {timeout:g} s"))
        except Exception as error:
            causes = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
            reason = "; ".join(f"{type(cause).__name__}: {cause}" for cause in causes)
            self.feed(OffsetsFetched(wanted.id, None, reason))
        else:
            self.feed(OffsetsFetched(wanted.id, offsets))

    async def _assign(self, task: Assign) -> None:
        try:
            assigned = await asyncio.get_running_loop().run_in_executor(
                self._assigning, assign_group, task.assignor, task.group
            )
        except Exception as error:
            self.feed(AssignFailed(task.id, f"{task.assignor.name}: {type(error).__name__}: {error}"))
        else:
            self.feed(Assigned(task.id, *assigned))

    def _cancel_timer(self, name: TimerName) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _expired(self, name: TimerName) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None and name == HEARTBEAT:
            self._on_heartbeat(max(0.0, asyncio.get_running_loop().time() - timer.when()))
        self.feed(TimerExpired(name))

    async def close(self) -> None:
        """Stop timers and requests."""
        for name in list(self._timers):
            self._cancel_timer(name)
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._assigning.shutdown(wait=False, cancel_futures=True)
