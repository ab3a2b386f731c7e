"""A process that writes a store until it is killed or has written enough: every key has the number of its commit.

Arguments: the store, commits, the most bytes of a file or 0, the engine.
"""

import resource
import sys

from roster.records.native import HASH, kernel
from roster.state import Position, StateError, hash_snapshot
from roster.state.hash_store import HashStore
from roster.state.lmdb_store import LmdbStore

ENGINES = {"LmdbStore": LmdbStore, "HashStore": HashStore}
KEYS = [b"key %05d" % number for number in range(2_000)]


def values(commit: int) -> list[bytes]:
    return [b"%d " % commit * 20] * len(KEYS)


def main() -> None:
    path, commits, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    hash_snapshot.use(kernel(None, HASH))
    with ENGINES[sys.argv[4] if len(sys.argv) > 4 else "LmdbStore"](path) as store:
        begin = store.position().changelog
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        for commit in range(begin + 1, begin + 1 + commits):
            try:
                store.commit(KEYS, values(commit), Position(commit, {"t": 10 * commit}))
                if limit:
                    keys = [b"more %d %d" % (commit, number) for number in range(2_000)]
                    store.commit(keys, [bytes(500)] * len(keys), store.position())
            except StateError as error:
                print(type(error).__name__, store.position().changelog, error, flush=True)
                return
            print(commit, flush=True)


if __name__ == "__main__":
    main()
