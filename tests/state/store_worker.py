"""A process that writes a store until it is killed or has written enough: every key has the number of its commit."""

import resource
import sys

from roster.state import Position, StateError
from roster.state.lmdb_store import LmdbStore

KEYS = [b"key %05d" % number for number in range(2_000)]


def values(commit: int) -> list[bytes]:
    return [b"%d " % commit * 20] * len(KEYS)


def main() -> None:
    path, commits, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with LmdbStore(path) as store:
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
