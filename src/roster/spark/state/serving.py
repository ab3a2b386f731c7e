"""Reads of a pipeline's stores: views for the application itself, and HTTP for others."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from roster.spark.jobs.spark_jobs import SparkJobs
from roster.spark.state.copies.preferred_locations import Cluster
from roster.spark.state.queries.client import StateClient
from roster.spark.state.queries.local_state import LocalState
from roster.spark.state.queries.server import Served, StateServer
from roster.spark.state.queries.store_reads import Reads, ReadsHere, ReadsOnExecutors
from roster.spark.state.queries.view import StateView
from roster.spark.state.stores import Stores

log = logging.getLogger(__name__)


class StateQueries:
    """Answers queries of one application's stores."""

    def __init__(
        self,
        jobs: SparkJobs,
        cluster: Cluster | None,
        stores: Stores,
    ) -> None:
        """`stores` are open. cluster: of a session that is not local."""
        copies, address = stores.copies, stores.application_server
        self._address, self._served = address, list[Served]()
        self._server: StateServer | None = None
        for (store, kind), changelog in zip(stores.topology.stores.items(), stores.changelogs, strict=True):
            here = ReadsHere(kind.place, kind.definition)
            reads: Reads = here if cluster is None else ReadsOnExecutors(jobs.context, cluster, here)
            local = LocalState(reads, changelog, copies, stores.targets.committed_attempt)
            fingerprint = kind.definition.fingerprint
            view = StateView(local, kind.definition, copies, StateClient(store, fingerprint), address)
            self._served.append(Served(store, fingerprint, view, local))

    @property
    def views(self) -> Mapping[str, StateView]:
        """The view of each store, by name."""
        return {served.name: served.view for served in self._served}

    def serve(self) -> None:
        """Answer over HTTP if there is an address. Raises PipelineError if it cannot be used."""
        if self._address is not None:
            self._server = StateServer(self._address, self._served)
            log.info("queries of state are answered at http://%s/stores", self._address)

    def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            self._server.close()
            self._server = None
