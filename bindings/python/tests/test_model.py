"""A store beside a dict: random histories, with views and versions that stay as they were."""

import tempfile

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

import terrane

KEYS = st.one_of(st.sampled_from([b"a", b"b", b"ab", b"abc", b"\x00", b"\xff\xff"]), st.binary(min_size=1, max_size=6))
VALUES = st.binary(max_size=40)


class Histories(RuleBasedStateMachine):
    views = Bundle("views")
    forks = Bundle("forks")
    versions = Bundle("versions")

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = terrane.open(self.folder.name, durability="buffered")
        self.table = self.store.table()
        self.model = {}

    @rule(key=KEYS, value=VALUES)
    def put(self, key, value):
        self.store[key] = value
        self.model[key] = value

    @rule(entries=st.dictionaries(KEYS, VALUES))
    def update(self, entries):
        self.store.update(entries)
        self.model.update(entries)

    @rule(key=KEYS)
    def delete(self, key):
        try:
            del self.store[key]
        except KeyError:
            assert key not in self.model
        else:
            del self.model[key]

    @rule(key=KEYS)
    def pop(self, key):
        assert self.table.pop(key, None) == self.model.pop(key, None)

    @rule(start=KEYS, stop=KEYS)
    def delete_range(self, start, stop):
        self.table.delete_range(start, stop)
        self.model = {key: value for key, value in self.model.items() if not start <= key < stop}

    @rule(keys=st.lists(KEYS, max_size=8))
    def get_many(self, keys):
        assert self.table.get_many(keys).to_list() == [self.model.get(key) for key in keys]

    @rule(start=st.none() | KEYS, stop=st.none() | KEYS, reverse=st.booleans())
    def scan(self, start, stop, reverse):
        def is_in(key):
            return (start is None or start <= key) and (stop is None or key < stop)

        expected = sorted((item for item in self.model.items() if is_in(item[0])), reverse=reverse)
        assert list(self.table.items(start, stop, reverse=reverse)) == expected
        chunks = [entry for chunk in self.table.scan_chunks(start, stop, rows=3) for entry in chunk.to_list()]
        assert chunks == sorted(expected)

    @rule(prefix=st.binary(max_size=2))
    def scan_prefix(self, prefix):
        assert list(self.table.keys(prefix=prefix)) == sorted(k for k in self.model if k.startswith(prefix))

    @rule(puts=st.dictionaries(KEYS, VALUES), deletes=st.lists(KEYS, max_size=4), fails=st.booleans())
    def batch(self, puts, deletes, fails):
        try:
            with self.store.batch() as batch:
                batch.put_many(self.table, list(puts), list(puts.values()))
                batch.delete_many(self.table, deletes)
                if fails:
                    raise RuntimeError
        except RuntimeError:
            return
        self.model.update(puts)
        for key in deletes:
            self.model.pop(key, None)

    @rule(key=KEYS, value=VALUES, is_disturbed=st.booleans())
    def transaction(self, key, value, is_disturbed):
        transaction = self.store.transaction()
        assert transaction.get(self.table, key) == self.model.get(key)
        transaction.put(self.table, key, value)
        assert transaction.get(self.table, key) == value
        if is_disturbed:
            self.put(key, b"disturbed")
        try:
            transaction.commit()
        except terrane.ConflictError:
            assert is_disturbed
        else:
            assert not is_disturbed
            self.model[key] = value

    @rule(target=views)
    def view(self):
        return self.table.view(), dict(self.model)

    @rule(view=views)
    def view_stays(self, view):
        view, model = view
        assert list(view.items()) == sorted(model.items())
        changes = {key: (old, new) for key, old, new in view.diff(self.table)}
        keys = {key for key in model.keys() | self.model.keys() if model.get(key) != self.model.get(key)}
        assert changes == {key: (model.get(key), self.model.get(key)) for key in keys}

    @rule(target=forks)
    def fork(self):
        return self.table.fork(), dict(self.model)

    @rule(fork=forks, entries=st.dictionaries(KEYS, VALUES))
    def fork_goes_its_way(self, fork, entries):
        fork, model = fork
        fork.put_many(list(entries), list(entries.values()))
        model.update(entries)
        assert list(fork.items()) == sorted(model.items())

    @rule(target=versions)
    def retain(self):
        return self.store.retain(), dict(self.model)

    @rule(version=consumes(versions), goes_back=st.booleans())
    def version(self, version, goes_back):
        number, model = version
        if number not in [version.number for version in self.store.versions()]:
            return  # Two versions of one commit are the same.
        assert list(self.store.version(number).items()) == sorted(model.items())
        if goes_back:
            self.store.roll_back(number)
            self.model = dict(model)

    @rule()
    def checkpoint(self):
        self.store.checkpoint()

    @invariant()
    def keys_are_those_of_the_model(self):
        assert list(self.table) == sorted(self.model)

    def teardown(self):
        self.store.close()
        self.folder.cleanup()


Histories.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestHistories = Histories.TestCase
