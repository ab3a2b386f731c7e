"""Reads of a pipeline's stores: views for the application itself, and what others ask for over HTTP."""

from __future__ import annotations

from roster.spark.jobs.preferred_locations import Cluster
from roster.spark.jobs.spark_jobs import SparkJobs
from roster.spark.queries.client import StateClient
from roster.spark.queries.local_state import LocalState
from roster.spark.queries.pages import Served
from roster.spark.queries.store_reads import Reads, ReadsHere, ReadsOnExecutors
from roster.spark.queries.view import StateView
from roster.stateful.stores import Stores


def served_stores(jobs: SparkJobs, cluster: Cluster | None, stores: Stores) -> list[Served]:
    """Return the open stores of one application, ready for queries. cluster: of a session that is not local."""
    copies, address, access = stores.copies, stores.application_server, stores.options.access
    served = []
    for (store, kind), changelog in zip(stores.topology.stores.items(), stores.changelogs, strict=True):
        here = ReadsHere(kind.place, kind.definition)
        reads: Reads = here if cluster is None else ReadsOnExecutors(jobs.context, cluster, here)
        local = LocalState(reads, changelog, copies, stores.targets.committed_attempt)
        fingerprint = kind.definition.fingerprint
        client = StateClient(store, fingerprint, access=access)
        served.append(Served(store, fingerprint, StateView(local, kind.definition, copies, client, address), local))
    return served
