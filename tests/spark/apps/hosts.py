"""A stateful pipeline as an application of its own, on a cluster: who counted how many records of each partition.

    hosts.py BOOTSTRAP GROUP TOPIC OUT MASTER

Runs until it is terminated. Prints for each batch the rows of its store, as a JSON object.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pyarrow as pa

from tests.spark.apps.standalone import session_on

if TYPE_CHECKING:
    from roster.spark import Progress


def main() -> None:
    from roster.spark import KafkaSink, Pipeline, State

    bootstrap, group, topic, out, master = sys.argv[1:]

    # Pickled by value: executors of another process have no module of this file's name.
    def told_by(rows: pa.RecordBatch) -> pa.RecordBatch:
        import os
        import sys

        spec = sys.modules["__main__"].__spec__
        by = f"{spec.name if spec else ''} {os.getpid()} {os.environ.get('TMPDIR', '')}"
        return pa.record_batch({"partition": rows.column("partition"), "by": pa.array([by] * rows.num_rows)})

    def tell(progress: Progress) -> None:
        told = {"rows": progress.rows, "restored": progress.restored, "state": made.store("counts").range()}
        print(json.dumps(told), flush=True)

    spark = session_on(master, group)
    made = Pipeline(
        spark,
        bootstrap,
        group,
        topic,
        trigger_interval_ms=0,
        max_offsets_per_batch=400,
        state=State(),
        on_progress=tell,
    )
    made.map_arrow(told_by, "partition int, by string")
    made.aggregate(["partition", "by"], {"n": "count(*)"}, store="counts")
    made.write(KafkaSink(bootstrap, out)).run()
    spark.stop()


if __name__ == "__main__":
    main()
