"""Stateful pipelines: the state of each task, in the same Kafka transaction as its outputs and input offsets.

A task with state belongs to a partition of the source topic, `0_<partition>`; after `repartition` to a partition of the
repartition topic, `1_<partition>`, which the tasks before write to. The changelog partition of the same number has its
authoritative state. These invariants hold at every moment, whatever is killed:

* Outputs, changelog records and input offsets of a batch are one transaction: all count, or none.
* A task's state before a batch is its changelog from the first offset to its end, committed records only. The driver
  looks up that end after fencing earlier owners, once the group's offsets are stable, and waits until no transaction is
  open before it: from then on only this application's own batches can extend the log.
* A store is a cache: its values always belong to its changelog position. The changes of a batch are pending beside
the values, under a token of the attempt that made them. The next batch applies them only if the driver names this token
as committed and no other owner was in between; else it drops them and reads the tail of the changelog. So an aborted
batch, a killed worker, a second attempt or a transaction with an unknown outcome leaves nothing in the values.
* A zombie can only write pending changes, under a token that is never named, to a store that it has locked or to a copy
of its own. Its records carry a fenced epoch, and its offsets an old generation.
"""
