"""Stores of named tables with atomic commits, batches over contiguous buffers, snapshots and roots.

>>> import tempfile, terrane
>>> folder = tempfile.TemporaryDirectory()
>>> with terrane.open(folder.name) as store:
...     accounts = store.table("accounts")
...     with store.batch(sync=True) as block:  # atomic, and durable at the end
...         block.put(accounts, "alice", "100")
...         block.put(accounts, "bob", "7")
...     version = store.retain()
...     del accounts["alice"]
...     _ = store.roll_back(version)
...     accounts["alice"], list(accounts)
(b'100', [b'alice', b'bob'])
>>> folder.cleanup()

``terrane.aio`` has the same calls for ``asyncio``, ``terrane.results`` reads the JSON reports of the
command line.
"""

from __future__ import annotations

import json as _json
import os as _os
from collections.abc import Iterable as _Iterable, Iterator as _Iterator, Mapping as _Mapping
from typing import Any as _Any, NamedTuple as _NamedTuple

from . import _terrane
from ._errors import (
    AlreadyExistsError,
    ClosedError,
    ConflictError,
    CorruptError,
    Error,
    InterruptedByCallerError,
    InvalidInputError,
    InvalidProofError,
    LockedError,
    NoSpaceError,
    NotFoundError,
    PermissionDeniedError,
    PoisonedError,
    ReadOnlyError,
    UnsupportedError,
)
from ._terrane import (
    Batch,
    Buffer,
    Changes,
    Chunks,
    CommittedTable,
    Entries,
    Fork,
    Items,
    RadixState,
    RadixTree,
    Reader,
    Rows,
    Table,
    Transaction,
    View,
    __version__,
    verify_committed_proof,
    verify_context_proof,
    verify_mpt_proof,
    verify_radix_proof,
)

__all__ = [
    "AlreadyExistsError", "Batch", "Buffer", "Changes", "Chunks", "ClosedError", "CommittedTable",
    "ConflictError", "CorruptError", "Entries", "Error", "Fork", "InterruptedByCallerError",
    "InvalidInputError", "InvalidProofError", "Items", "LockedError", "NoSpaceError",
    "NotFoundError", "PermissionDeniedError", "PoisonedError", "RadixState", "RadixTree",
    "ReadOnlyError", "Reader", "Rows", "Store", "Table", "Transaction", "UnsupportedError",
    "Version", "View", "__version__", "inspect", "open", "stats", "transact",
    "verify_committed_proof", "verify_context_proof", "verify_mpt_proof", "verify_radix_proof",
]

#: Runs of a transaction at most, as in Rust.
_ATTEMPTS_MAX = 16


class Version(_NamedTuple):
    """A retained version of all tables."""

    number: int
    name: str | None
    tables: list[str]


class Store(_terrane.Store):
    """A directory of named tables. As a mapping, the store is its table ``main``.

    A store is a context manager, which closes it. Threads may share it.
    """

    __slots__ = ("_main",)

    @property
    def main(self) -> Table:
        """The table ``main``, made when it is first used."""
        try:
            return self._main
        except AttributeError:
            self._main = self.table()
            return self._main

    def __getitem__(self, key):
        return self.main[key]

    def __setitem__(self, key, value) -> None:
        self.main[key] = value

    def __delitem__(self, key) -> None:
        del self.main[key]

    def __contains__(self, key) -> bool:
        return key in self.main

    def __iter__(self) -> _Iterator[bytes]:
        return iter(self.main)

    def get(self, key, default=None):
        return self.main.get(key, default)

    def update(self, entries: _Mapping | _Iterable[tuple], *, sync: bool = False) -> int:
        """Sets many values of ``main`` in one commit and returns the number of the commit."""
        pairs = list(entries.items() if hasattr(entries, "items") else entries)
        keys, values = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        return self.main.put_many(keys, values, sync=sync)

    def versions(self) -> list[Version]:
        return [Version(*version) for version in super().versions()]

    def back_up(self, path: str | _os.PathLike) -> dict[str, _Any]:
        """Makes or renews a backup in a directory and returns what was copied."""
        return _json.loads(self.back_up_json(path))

    def stats(self) -> dict[str, _Any]:
        """Returns what the store has counted: reads, writes, files, memory."""
        return _json.loads(self.stats_json())

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind, error, traceback) -> None:
        self.close()


def open(
    path: str | _os.PathLike,
    *,
    create: bool = True,
    durability: str = "group",
    memory_budget: int | None = None,
) -> Store:
    """Opens the store in a directory, or creates one.

    ``durability`` is what a commit survives when it returns: ``"none"``, ``"buffered"`` (the end of
    the process), ``"group"`` (a loss of power once ``sync`` has waited), ``"each"`` (a loss of power).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as path, open(path) as store:
    ...     store["k"] = b"v"
    ...     store["k"], "x" in store
    (b'v', False)
    """
    return Store(path, create=create, durability=durability, memory_budget=memory_budget)


def transact(store: Store, body, *, sync: bool = True):
    """Runs ``body(transaction)`` and commits, again if another commit got in the way.

    Do nothing in ``body`` that must not be repeated. After 16 attempts the last ``ConflictError``
    is raised.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as path, open(path) as store:
    ...     counters = store.table("counters")
    ...     def count(tx):
    ...         height = int(tx.get(counters, "height", b"0")) + 1
    ...         tx.put(counters, "height", str(height))
    ...         return height
    ...     transact(store, count), transact(store, count)
    (1, 2)
    """
    for attempt in range(_ATTEMPTS_MAX):
        transaction = store.transaction(sync=sync)
        try:
            result = body(transaction)
            transaction.commit()
            return result
        except ConflictError:
            if attempt + 1 == _ATTEMPTS_MAX:
                raise
        finally:
            transaction.rollback()


def stats(reader: Reader) -> dict[str, _Any]:
    """Returns the shape of a table and what it has counted. No I/O."""
    return _json.loads(reader.stats_json())


def inspect(path: str | _os.PathLike) -> dict[str, _Any]:
    """Describes a directory or file of a store or of a B+tree index. Takes no lock.

    ``kind`` says what it is. ``terrane.results.flatten`` makes one row of it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as path:
    ...     open(path).close()
    ...     inspect(path)["kind"]
    'session'
    """
    engine, text = _terrane.inspect_json(path)
    found = _json.loads(text)
    if engine == "lsm" and isinstance(found, dict) and len(found) == 1:
        (kind, description), = found.items()
        return {"kind": kind, **(description if isinstance(description, dict) else {"value": description})}
    return {"kind": "index" if engine == "btree" else engine, **found}
