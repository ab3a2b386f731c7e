"""Stateful pipelines on Spark: state of each task, in the same Kafka transaction as its outputs and input offsets.

A task with state is a partition of the source topic, `0_<partition>`; behind `repartition` it is one of the topic
between two sub-topologies, `1_<partition>`, to which tasks without state write. Its truth is the changelog partition of
the same number. What holds at every moment, whatever is killed:

* Outputs, changelog records and input offsets of a batch are one transaction: all count, or none.
* A task's state before a batch is its changelog from the first offset to its end, committed records only. The driver
  asks for that end after earlier owners are fenced and the group's offsets are stable, and waits until no transaction
  is open before it: nothing but this application's own batches can extend the log from then on.
* A store is a cache: its values are always those of its changelog position. The changes of a batch lie beside the
  values under a token of the attempt that made them. The next batch applies them only if the driver names this token as
  committed, and no other owner was in between; else it drops them and reads the tail of the changelog. So an aborted
  batch, a killed worker, a second attempt or a transaction whose outcome is unknown leave nothing in the values.
* A zombie may write what it likes into its store: under a lock, or into a copy of its own, with a token that is never
  named. Its records carry an epoch that is fenced, and its offsets a generation that is over.
"""
