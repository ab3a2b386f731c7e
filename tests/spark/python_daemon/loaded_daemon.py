"""PySpark's daemon with what tasks import already loaded, so that a worker starts with a tenth of the CPU.

PySpark itself is loaded from its installation: each worker would look through all of `pyspark.zip` several times.
"""

import gc
import importlib
import sys

LOADED = (
    "confluent_kafka.admin",
    "google_crc32c",
    "llvmlite.binding",
    "pandas",
    "pyarrow.dataset",
    "pyspark.worker",
    "pytest",
    "roster.spark.pipeline",
    "roster.spark.processor.operator",
    "roster.stateful.tasks.task",
    "roster.state.lmdb_store",
)

if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if not path.endswith(".zip")]
    for name in LOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    importlib.import_module("pyspark.daemon").manager()
