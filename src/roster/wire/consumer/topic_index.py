"""Index of topic names: a hash table of machine words that looks up thousands of names in a byte buffer at once."""

from collections.abc import Iterable, Sequence

import numpy as np

from roster.model.arrays import Int32, Int64, UInt64

WORD = 8
"""Bytes compared, hashed and written at once."""

_CHUNK = 1 << 16
"""Topic names looked up at once; limits the memory that malicious lists of names can take."""


class WordBuffer:
    """Bytes that can be read as integers at many positions at once, aligned or not."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self.data = b"".join((*parts, bytes(WORD)))  # padded, so that the last bytes can be read as a word too
        self.size = len(self.data) - WORD
        self.int16 = np.ndarray(self.size + 1, dtype=">i2", buffer=self.data, strides=(1,))
        self.int32 = np.ndarray(self.size + 1, dtype=">i4", buffer=self.data, strides=(1,))
        self.word = np.ndarray(self.size + 1, dtype="<u8", buffer=self.data, strides=(1,))

    def words(self, start: Int64, length: Int64, width: int) -> UInt64:
        """Return [width, names]: the bytes of each name as little-endian integers, zero past its end."""
        place = start + (WORD * np.arange(width))[:, np.newaxis]
        left = length - (WORD * np.arange(width))[:, np.newaxis]
        words = self.word[np.minimum(place, self.size)]
        return np.asarray(words & _FIRST_BYTES[np.clip(left, 0, WORD)], dtype=np.uint64)


_FIRST_BYTES = np.array([(1 << (8 * n)) - 1 for n in range(WORD + 1)], dtype=np.uint64)


class TopicIndex:
    """Topic names to look up in a buffer, many (position, length) pairs at once: a hash table of arrays."""

    def __init__(self, names: Sequence[str]) -> None:
        self._words, self._length = as_words(names)
        bits = max(3, (2 * len(names)).bit_length())
        self._shift = np.uint64(64 - bits)
        slot = (_hash(self._words, self._length) >> self._shift).astype(np.uint16 if bits <= 16 else np.int64)
        self._chain = np.argsort(slot, kind="stable").astype(np.int32)
        self._begin = np.zeros((1 << bits) + 1, dtype=np.int32)
        np.cumsum(np.bincount(slot, minlength=1 << bits), out=self._begin[1:])

    def find(self, buffer: WordBuffer, start: Int64, length: Int64) -> Int32:
        """Return the index of each name in the buffer, -1 for a name that is not in the index."""
        indices = np.full(len(start), -1, dtype=np.int32)
        if len(self._length):
            for begin in range(0, len(start), _CHUNK):
                rows = slice(begin, begin + _CHUNK)
                self._find(buffer, start[rows], length[rows], indices[rows])
        return indices

    def _find(self, buffer: WordBuffer, start: Int64, length: Int64, found: Int32) -> None:
        words = buffer.words(start, length, len(self._words))
        slot = (_hash(words, length) >> self._shift).astype(np.int64)
        place, end = self._begin[slot], self._begin[slot + 1]
        pending = np.flatnonzero(place < end)
        place, end = place[pending], end[pending]
        while len(pending):
            candidate = self._chain[place]
            equal = self._length[candidate] == length[pending]
            for mine, wanted in zip(self._words, words, strict=True):
                equal &= mine[candidate] == wanted[pending]
            found[pending[equal]] = candidate[equal]
            place = place + 1
            more = ~equal & (place < end)
            pending, place, end = pending[more], place[more], end[more]


def as_words(names: Sequence[str]) -> tuple[UInt64, Int64]:
    """Return the names in UTF-8 as `WordBuffer.words` does ([width, names]), and their lengths in bytes ([names])."""
    text = "".join(names)
    data = text.encode("utf-8", "surrogatepass")
    sized: Iterable[str | bytes] = names
    if len(data) != len(text):
        sized = [name.encode("utf-8", "surrogatepass") for name in names]
    length = np.fromiter(map(len, sized), dtype=np.int64, count=len(names))
    width = -(-int(length.max(initial=0)) // WORD)
    return WordBuffer([data]).words(np.cumsum(length) - length, length, width), length


def _hash(words: UInt64, length: Int64) -> UInt64:
    value = length.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for word in words:
        value = (value ^ word) * np.uint64(0xBF58476D1CE4E5B9)
        value ^= value >> np.uint64(29)
    return np.asarray(value * np.uint64(0x94D049BB133111EB), dtype=np.uint64)
