"""Stores for ``asyncio``.

One thread for each store submits all calls, in the order in which they were awaited. Lookups that
wait side by side become one batch: a thousand tasks that each await ``get`` cost a few calls of the
engine, whose reads are in flight together.

>>> import asyncio, tempfile
>>> async def main(path):
...     async with await open(path) as store:
...         accounts = await store.table("accounts")
...         await accounts.put_many(["alice", "bob"], ["100", "7"], sync=True)
...         return await asyncio.gather(accounts.get("alice"), accounts.get("carol", b"0"))
>>> with tempfile.TemporaryDirectory() as path:
...     asyncio.run(main(path))
[b'100', b'0']
"""

from __future__ import annotations

import asyncio
import collections
import functools
import os
import queue
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import terrane

__all__ = ["Store", "Table", "open"]

#: Lookups that become one batch at most.
_GATHERED_MAX = 1024


class _Call:
    """A call that a task waits for."""

    __slots__ = ("future", "loop", "body")

    def __init__(self, body: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.future = self.loop.create_future()
        self.body = body

    def answer(self, result: Any, error: BaseException | None = None) -> None:
        try:
            self.loop.call_soon_threadsafe(self._settle, result, error)
        except RuntimeError:
            pass  # The loop was closed, and nobody waits any more.

    def _settle(self, result: Any, error: BaseException | None) -> None:
        if self.future.done():
            return  # The task was cancelled meanwhile.
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)


class _Get:
    """A lookup of one key."""

    __slots__ = ("reader", "key", "default")

    def __init__(self, reader: terrane.Reader, key: Any, default: Any) -> None:
        self.reader, self.key, self.default = reader, key, default


class _Submitter:
    """The thread of a store."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="terrane", daemon=True)
        self._thread.start()

    async def call(self, body: Any) -> Any:
        call = _Call(body)
        # No call may come behind the one that ends the thread: nobody would answer.
        with self._lock:
            if self._is_closed:
                raise terrane.ClosedError("the store was closed")
            self._calls.put(call)
        return await call.future

    def close(self) -> None:
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._calls.put(None)

    def _run(self) -> None:
        waiting: collections.deque[_Call | None] = collections.deque()
        while True:
            if not waiting:
                waiting.append(self._calls.get())
            while not self._calls.empty():
                waiting.append(self._calls.get())
            call = waiting.popleft()
            if call is None:
                return
            if isinstance(call.body, _Get):
                self._get_many(call, waiting)
            else:
                self._make(call, call.body)
            del call  # Nothing is kept while the thread waits.

    def _make(self, call: _Call, body: Callable[[], Any]) -> None:
        try:
            result = body()
        except BaseException as error:
            call.answer(None, error)
        else:
            call.answer(result)

    def _get_many(self, first: _Call, waiting: collections.deque[_Call | None]) -> None:
        """Answers a lookup together with those of the same table that wait right behind it."""
        calls = [first]
        while waiting and len(calls) < _GATHERED_MAX:
            call = waiting[0]
            if call is None or not isinstance(call.body, _Get):
                break
            if call.body.reader is not first.body.reader:
                break
            calls.append(waiting.popleft())
        try:
            found = first.body.reader.get_many([call.body.key for call in calls])
        except BaseException:
            # One key may be at fault: each lookup gets an answer or an error of its own.
            for call in calls:
                get = call.body
                self._make(call, functools.partial(get.reader.get, get.key, get.default))
        else:
            for call, value in zip(calls, found.to_list()):
                call.answer(call.body.default if value is None else value)


class Table:
    """A named table. Each method is that of ``terrane.Table``, awaited."""

    def __init__(self, submitter: _Submitter, table: terrane.Table) -> None:
        self._submitter, self.table = submitter, table

    async def get(self, key, default=None):
        return await self._submitter.call(_Get(self.table, key, default))

    async def get_many(self, keys) -> terrane.Rows:
        return await self._submitter.call(functools.partial(self.table.get_many, keys))

    async def put(self, key, value, *, sync: bool = False) -> int:
        return await self._submitter.call(functools.partial(self.table.put, key, value, sync=sync))

    async def put_many(self, keys, values, *, sync: bool = False) -> int:
        return await self._submitter.call(
            functools.partial(self.table.put_many, keys, values, sync=sync)
        )

    async def delete(self, key, *, sync: bool = False) -> int:
        return await self._submitter.call(functools.partial(self.table.delete, key, sync=sync))

    async def delete_many(self, keys, *, sync: bool = False) -> int:
        return await self._submitter.call(functools.partial(self.table.delete_many, keys, sync=sync))

    async def scan_chunks(self, start=None, stop=None, **options) -> AsyncIterator[terrane.Entries]:
        """Gives the chunks of a scan; see ``terrane.Reader.scan_chunks``."""
        scan = functools.partial(self.table.scan_chunks, start, stop, **options)
        chunks = await self._submitter.call(scan)
        while (chunk := await self._submitter.call(functools.partial(next, chunks, None))) is not None:
            yield chunk


class Store:
    """A store, whose calls one thread makes. ``store`` is the blocking one."""

    def __init__(self, submitter: _Submitter, store: terrane.Store) -> None:
        self._submitter, self.store = submitter, store

    async def run(self, body: Callable[..., Any], *arguments, **options) -> Any:
        """Calls anything on the thread of the store, such as ``store.store.retain``."""
        return await self._submitter.call(functools.partial(body, *arguments, **options))

    async def table(self, name: str = "main", *, create: bool = True) -> Table:
        return Table(self._submitter, await self.run(self.store.table, name, create=create))

    async def commit(self, batch: terrane.Batch, *, sync: bool | None = None) -> int:
        """Commits a batch that ``store.store.batch()`` has made."""
        return await self.run(batch.commit, sync=sync)

    async def transact(self, body: Callable[[terrane.Transaction], Any]) -> Any:
        """Runs ``terrane.transact``; ``body`` runs on the thread of the store and must not await."""
        return await self.run(terrane.transact, self.store, body)

    async def sync(self, commit: int | None = None) -> None:
        await self.run(self.store.sync, commit)

    async def close(self) -> None:
        """Closes the store and ends its thread."""
        try:
            await self.run(self.store.close)
        finally:
            self._submitter.close()

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, kind, error, traceback) -> None:
        await self.close()


async def open(path: str | os.PathLike, **options) -> Store:
    """Opens a store as ``terrane.open`` does, on a thread of its own."""
    submitter = _Submitter()
    try:
        store = await submitter.call(functools.partial(terrane.open, path, **options))
    except BaseException:
        submitter.close()
        raise
    return Store(submitter, store)
