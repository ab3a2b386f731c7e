"""Options of a pipeline's state."""

from __future__ import annotations

from dataclasses import dataclass

from roster.model import AddressError, parse_address
from roster.model.options import INT64_MAX, declared, explained, option, shown
from roster.pipeline.errors import PipelineError
from roster.state.store_files import LEAST_ROOM


@explained
@dataclass(frozen=True, kw_only=True)
class State:
    """Where a stateful pipeline keeps its stores, and how many copies of them.

    Raises:
        PipelineError: an option is wrong; the message names it.

    """

    dir: str | None = option(
        None,
        "directory on each executor's local disk for the stores; None: `roster-state` in that of temporary files",
        kafka="state.dir",
    )
    standbys: int = option(
        0, "copies of each task's stores in other applications of the group", least=0, kafka="num.standby.replicas"
    )
    max_bytes: int | None = option(
        None,
        "bytes that the stores may take on each executor's host: beyond, standby copies are given up, then "
        "the run ends with an error; None: no limit",
        unit="bytes",
        least=LEAST_ROOM,
        most=INT64_MAX,
    )
    application_server: str | None = option(
        None,
        "`host:port` at which other applications of the group ask the driver for its state over HTTP; it "
        "listens there unless the pipeline's `http` says where; None: they cannot",
        kafka="application.server",
    )
    cleanup_delay_ms: int = option(
        600_000,
        "time after which a store on disk is removed that no application on the host has a task for",
        unit="ms",
        least=1_000,
        kafka="state.cleanup.delay.ms",
    )

    def __post_init__(self) -> None:
        for name, declaration in declared(State).items():
            if problem := declaration.problem(getattr(self, name)):
                raise PipelineError(problem, field=f"State.{name}")
        if self.dir is not None and (not isinstance(self.dir, str) or not self.dir.startswith("/")):
            raise PipelineError(
                f"{shown(self.dir)} is not an absolute path", field="State.dir", fix="For example '/var/lib/roster'"
            )
        _check_application_server(self.application_server)


def _check_application_server(address: object) -> None:
    if address is None:
        return
    try:
        host = parse_address(address).host if isinstance(address, str) else ""
    except AddressError as error:
        fix = error.fix[0].upper() + error.fix[1:]
        raise PipelineError(error.problem, field="State.application_server", fix=fix) from None
    if host in ("", "0.0.0.0", "::", "*"):  # noqa: S104 - refused here
        raise PipelineError(
            f"{shown(address)} is not an address that other applications could ask",
            field="State.application_server",
            fix="Name one host of this machine, for example '127.0.0.1:8080'",
        )
