//! Tables, cursors and snapshots against the model, in lock-step.
//!
//! Goal: any history of operations gives the answers of `testkit::model::Forest`, whatever the
//! configuration, on the real and on the simulated disk, and leaves no file behind. Method: each seed
//! draws a shape of keys, a style of values, weights of operations, and for each table a
//! configuration; every answer is compared; at the end everything is read in full, then dropped.

use std::collections::BTreeMap;

use terrane_lsm::{
    Cursor, DiskCache, Error, FilterPolicy, IndexKind, KEY_BYTES_MAX, Lookup, MergePolicy,
    MergeSchedule, MergeThread, Resolve, Session, SnapshotName, Table, TableConfig, Update,
    WriteBuffer,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::keys::{Keys, Shape};
use terrane_testkit::model::{Change, CursorId, Forest, Refused, TableId};
use terrane_testkit::seeds::for_each_seed;

use crate::{Place, content, name, value};

const TABLES_MAX: usize = 6;
const CURSORS_MAX: usize = 4;
const SNAPSHOTS: [&str; 4] = ["a", "b", "c", "d-4_x"];
const LABELS: [&str; 2] = ["ledger", "stake"];

/// What a seed is about.
struct Swarm {
    keys: Keys,
    /// Lengths of values, drawn from with equal chance.
    value_lens: Vec<usize>,
    /// Weights of the operations, in the order of [`Lockstep::step`].
    weights: [u64; 11],
    batch_len_max: usize,
    deletes_of_8: u64,
    /// Tables with a background thread, of four.
    background_of_4: u64,
}

impl Swarm {
    fn draw(rng: &mut impl Draw) -> Self {
        let shape = *rng.pick(&Shape::ALL);
        let key_count = *rng.pick(&[20, 200, 2_000]);
        let value_lens = match rng.below(4) {
            0 => vec![0],
            1 => vec![0, 1, 8, 60],
            // With a key of 34 bytes: an entry that fills a page, and one byte more.
            2 => vec![0, 60, 4040, 4041, 4042, 4096, 4097, 10_000],
            _ => vec![20, 60, 60, 60, 60, 60, 300, 8_200, 100_000],
        };
        let mut weights = [12, 8, 2, 1, 1, 2, 3, 2, 2, 1, 1];
        for weight in &mut weights[2..] {
            *weight *= rng.below(3);
        }
        let batch_len_max = *rng.pick(&[1, 8, 100, 100, 700]);
        let deletes_of_8 = *rng.pick(&[0, 1, 3, 5, 7]);
        let background_of_4 = *rng.pick(&[0, 0, 2]);
        let keys = Keys::new(shape, key_count, rng);
        Self { keys, value_lens, weights, batch_len_max, deletes_of_8, background_of_4 }
    }

    /// A key of the population, or one near it that is not there.
    fn any_key(&self, rng: &mut impl Draw) -> Vec<u8> {
        let mut key = self.keys.hot_or_cold(rng).to_vec();
        match rng.below(8) {
            0 => key.push(0),
            1 => {
                key.pop();
            }
            2 => {
                if let Some(last) = key.last_mut() {
                    *last ^= 1;
                }
            }
            _ => {}
        }
        key
    }
}

fn draw_config(background_of_4: u64, rng: &mut impl Draw) -> TableConfig {
    let entries = *rng.pick(&[1, 2, 3, 4, 4, 7, 30, 1000]);
    let bytes = *rng.pick(&[1, 100, 1_000, 5_000, 50_000]);
    TableConfig {
        resolve: Resolve::newest(),
        merge_policy: *rng.pick(&[
            MergePolicy::LazyLevelling,
            MergePolicy::LazyLevelling,
            MergePolicy::Levelling,
            MergePolicy::Tiering,
        ]),
        size_ratio: *rng.pick(&[4, 2, 3, 5]),
        merge_schedule: if rng.chance(3, 4) {
            MergeSchedule::Incremental
        } else {
            MergeSchedule::OneShot
        },
        merge_thread: if rng.chance(background_of_4, 4) {
            MergeThread::Background
        } else {
            MergeThread::Caller
        },
        write_buffer: if rng.chance(1, 3) {
            WriteBuffer::Bytes(bytes)
        } else {
            WriteBuffer::Entries(entries)
        },
        filter: rng
            .pick(&[
                FilterPolicy::TotalFpr(0.01),
                FilterPolicy::TotalFpr(0.1),
                FilterPolicy::Fpr(0.001),
                FilterPolicy::BitsPerEntry(2.0),
            ])
            .clone(),
        memory_budget: None,
        index: *rng.pick(&[IndexKind::Auto, IndexKind::Compact, IndexKind::Ordinary]),
        disk_cache: *rng.pick(&[DiskCache::All, DiskCache::None]),
        merge_batch_pages: *rng.pick(&[1, 2, 16, 200]),
        queue_depth: *rng.pick(&[1, 2, 7, 64, 128]),
    }
}

/// The engine and the model, side by side.
struct Lockstep {
    place: Place,
    /// `None` only while it is being opened anew.
    session: Option<Session>,
    tables: Vec<(Table, TableId)>,
    cursors: Vec<(Cursor, CursorId)>,
    /// Configurations of the snapshots.
    stored: BTreeMap<String, TableConfig>,
    forest: Forest,
    /// Values written so far, so that no two are the same.
    written: u64,
}

impl Lockstep {
    fn new(place: Place) -> Self {
        let session = Some(place.open());
        Self {
            place,
            session,
            tables: Vec::new(),
            cursors: Vec::new(),
            stored: BTreeMap::new(),
            forest: Forest::default(),
            written: 0,
        }
    }

    fn session(&self) -> &Session {
        self.session.as_ref().unwrap()
    }

    fn step(&mut self, swarm: &Swarm, rng: &mut impl Draw) {
        let total = swarm.weights.iter().sum();
        let mut draw = rng.below(total);
        let mut operation = 0;
        while draw >= swarm.weights[operation] {
            draw -= swarm.weights[operation];
            operation += 1;
        }
        if self.tables.is_empty() {
            operation = 2;
        }
        match operation {
            0 => self.update(swarm, rng),
            1 => self.look_up(swarm, rng),
            2 => self.new_table(swarm, rng),
            3 => self.duplicate(rng),
            4 => self.drop_table(rng),
            5 => self.new_cursor(swarm, rng),
            6 => self.read_cursor(rng),
            7 => self.save(rng),
            8 => self.open(rng),
            9 => self.delete_snapshot(rng),
            _ => self.restart(rng),
        }
    }

    fn update(&mut self, swarm: &Swarm, rng: &mut impl Draw) {
        let (table, id) = {
            let at = rng.index(self.tables.len());
            let (table, id) = &mut self.tables[at];
            (table, *id)
        };
        let len = match rng.below(60) {
            0 => 1 + rng.index(5_001),
            1..=20 => 1,
            _ => 1 + rng.index(swarm.batch_len_max),
        };
        // A batch of thousands of large values would only take time.
        let lens = if len > 1_000 { &[0, 60][..] } else { &swarm.value_lens };
        let mut batch = Vec::new();
        for _ in 0..len {
            let key = swarm.keys.hot_or_cold(rng).to_vec();
            self.written += 1;
            let change = if rng.chance(swarm.deletes_of_8, 8) {
                Change::Delete
            } else {
                Change::Insert(value(self.written, *rng.pick(lens)))
            };
            batch.push((key, change));
        }
        if rng.chance(1, 30) {
            let at = rng.index(batch.len() + 1);
            let mut refused = batch.clone();
            refused.insert(at, (vec![7; KEY_BYTES_MAX + 1], Change::Delete));
            let error = table.updates(&updates(&refused)).unwrap_err();
            assert!(
                matches!(error, Error::KeyTooLarge { bytes, limit }
                    if bytes == limit + 1 && limit == KEY_BYTES_MAX),
                "{error}"
            );
        }
        match &batch[..] {
            [(key, Change::Insert(value))] if rng.chance(1, 2) => table.insert(key, value).unwrap(),
            [(key, Change::Delete)] => table.delete(key).unwrap(),
            _ => table.updates(&updates(&batch)).unwrap(),
        }
        for (key, change) in batch {
            self.forest.update(id, &key, change).unwrap();
        }
    }

    fn look_up(&mut self, swarm: &Swarm, rng: &mut impl Draw) {
        let (table, id) = rng.pick(&self.tables);
        let len = match rng.below(6) {
            0 => 0,
            1 | 2 => 1,
            3 | 4 => rng.index(20),
            _ => rng.index(400),
        };
        let keys: Vec<_> = (0..len).map(|_| swarm.any_key(rng)).collect();
        compare_lookups(table, *id, &self.forest, &keys);
        if let Some(key) = keys.first() {
            let single = table.lookup(key).unwrap();
            assert_eq!(single.value(), self.forest.lookup(*id, key).unwrap());
        }
    }

    fn new_table(&mut self, swarm: &Swarm, rng: &mut impl Draw) {
        let config = draw_config(swarm.background_of_4, rng);
        if self.tables.len() < TABLES_MAX {
            let table = self.session().new_table(&config).unwrap();
            assert_eq!(table.config(), &config);
            self.tables.push((table, self.forest.new_table()));
        }
    }

    fn duplicate(&mut self, rng: &mut impl Draw) {
        let (table, id) = rng.pick(&self.tables);
        if self.tables.len() < TABLES_MAX {
            let copy = (table.duplicate().unwrap(), self.forest.duplicate(*id).unwrap());
            self.tables.push(copy);
        }
    }

    fn drop_table(&mut self, rng: &mut impl Draw) {
        let (table, id) = self.tables.swap_remove(rng.index(self.tables.len()));
        if rng.chance(1, 2) {
            self.compare_table(&table, id);
        }
        self.forest.close_table(id);
    }

    fn new_cursor(&mut self, swarm: &Swarm, rng: &mut impl Draw) {
        let (table, id) = rng.pick(&self.tables);
        let from = if rng.chance(1, 3) { Vec::new() } else { swarm.any_key(rng) };
        if self.cursors.len() < CURSORS_MAX {
            let cursor = table.cursor_at(&from).unwrap();
            self.cursors.push((cursor, self.forest.new_cursor(*id, &from).unwrap()));
        }
    }

    fn read_cursor(&mut self, rng: &mut impl Draw) {
        let count = *rng.pick(&[0, 1, 10, 500]);
        let at = rng.index(CURSORS_MAX);
        let is_dropped = rng.chance(1, 6);
        if let Some((cursor, id)) = self.cursors.get_mut(at) {
            let expected = self.forest.take(*id, count).unwrap();
            let ends = expected.len() < count;
            for (key, value) in expected {
                let record = cursor.next().unwrap().expect("the model has one more");
                assert_eq!((record.key, record.value.into_vec()), (key, value));
            }
            if ends {
                assert_eq!(cursor.next().unwrap(), None);
                assert_eq!(cursor.next().unwrap(), None);
            }
            if is_dropped {
                let (_, id) = self.cursors.swap_remove(at);
                self.forest.close_cursor(id);
            }
        }
    }

    fn save(&mut self, rng: &mut impl Draw) {
        let (text, label) = (*rng.pick(&SNAPSHOTS), *rng.pick(&LABELS));
        let (table, id) = rng.pick(&self.tables);
        let got = table.save_snapshot(&name(text), label);
        match self.forest.save_snapshot(*id, text, label) {
            Ok(()) => {
                got.unwrap();
                self.stored.insert(text.to_owned(), table.config().clone());
            }
            Err(refused) => assert_refused(got, &refused, text, label),
        }
        self.compare_names();
    }

    fn open(&mut self, rng: &mut impl Draw) {
        let (text, label) = (*rng.pick(&SNAPSHOTS), *rng.pick(&LABELS));
        if self.tables.len() == TABLES_MAX {
            return;
        }
        let got = self.session().open_snapshot(&name(text), label);
        match self.forest.open_snapshot(text, label) {
            Ok(id) => {
                let table = got.unwrap();
                assert_eq!(table.config(), &self.stored[text]);
                self.tables.push((table, id));
            }
            Err(refused) => assert_refused(got.map(|_| ()), &refused, text, label),
        }
    }

    fn delete_snapshot(&mut self, rng: &mut impl Draw) {
        let text = *rng.pick(&SNAPSHOTS);
        let got = self.session().delete_snapshot(&name(text));
        match self.forest.delete_snapshot(text) {
            Ok(()) => got.unwrap(),
            Err(refused) => assert_refused(got, &refused, text, ""),
        }
        self.compare_names();
    }

    /// Close and reopen, or die and reopen: only snapshots are left.
    fn restart(&mut self, rng: &mut impl Draw) {
        let is_closed = rng.chance(1, 2);
        if is_closed {
            self.session().close().unwrap();
            for (table, _) in &mut self.tables {
                assert!(matches!(table.lookup(b"k"), Err(Error::SessionClosed)));
                assert!(matches!(table.delete(b"k"), Err(Error::SessionClosed)));
            }
        }
        // A process that dies drops nothing, so the kill comes before the handles go.
        if !is_closed {
            self.place.kill();
        }
        self.cursors.clear();
        self.tables.clear();
        self.session = None;
        self.session = Some(self.place.open());
        self.forest.crash();
        self.compare_names();
        if self.forest.snapshot_names().is_empty() {
            assert_eq!(self.place.runs(), Vec::<std::path::PathBuf>::new());
        }
    }

    fn compare_names(&self) {
        let names = self.session().list_snapshots().unwrap();
        let names: Vec<&str> = names.iter().map(SnapshotName::as_str).collect();
        assert_eq!(names, self.forest.snapshot_names());
        for text in SNAPSHOTS {
            let exists = self.session().snapshot_exists(&name(text)).unwrap();
            assert_eq!(exists, names.contains(&text));
        }
    }

    fn compare_table(&self, table: &Table, id: TableId) {
        let expected = self.forest.content(id).unwrap();
        let scanned = content(table);
        assert!(
            scanned.iter().map(|(key, value)| (key, value)).eq(expected),
            "a scan of {} entries differs from the model's {}, first at {:?}",
            scanned.len(),
            expected.len(),
            scanned.iter().zip(expected).position(|(left, right)| (&left.0, &left.1) != right),
        );
        assert!(table.stats().entries() >= expected.len() as u64);
    }

    /// Reads everything, drops everything, and looks for what stayed behind.
    fn end(mut self, swarm: &Swarm) {
        for (table, id) in &self.tables {
            self.compare_table(table, *id);
            compare_lookups(table, *id, &self.forest, swarm.keys.all());
        }
        for text in SNAPSHOTS {
            for label in LABELS {
                if let Ok(id) = self.forest.open_snapshot(text, label) {
                    let table = self.session().open_snapshot(&name(text), label).unwrap();
                    self.compare_table(&table, id);
                }
            }
        }
        for text in self.forest.snapshot_names() {
            self.session().delete_snapshot(&name(text)).unwrap();
        }
        self.cursors.clear();
        self.tables.clear();
        // A background thread lets go of its merges in its own time, or when the session closes.
        if swarm.background_of_4 == 0 {
            assert_eq!(self.place.runs(), Vec::<std::path::PathBuf>::new());
        }
        self.session().close().unwrap();
        assert_eq!(self.place.runs(), Vec::<std::path::PathBuf>::new());
        if let Place::Simulated { disk } = &self.place {
            assert_eq!(disk.open_files(), 0);
        }
    }
}

fn updates(batch: &[(Vec<u8>, Change)]) -> Vec<(&[u8], Update<'_>)> {
    let pair = batch.iter().map(|(key, change)| match change {
        Change::Insert(value) => (key.as_slice(), Update::Insert(value)),
        Change::Delete => (key.as_slice(), Update::Delete),
    });
    pair.collect()
}

fn compare_lookups(table: &Table, id: TableId, forest: &Forest, keys: &[Vec<u8>]) {
    let results = table.lookups(keys).unwrap();
    assert_eq!(results.len(), keys.len());
    for (key, result) in keys.iter().zip(&results) {
        let expected = forest.lookup(id, key).unwrap();
        assert_eq!(result.value(), expected, "key {key:02x?}");
        assert_eq!(*result == Lookup::NotFound, expected.is_none());
    }
}

fn assert_refused(got: terrane_lsm::Result<()>, refused: &Refused, text: &str, label: &str) {
    let error = got.expect_err("the model refuses this");
    let agrees = match (&error, refused) {
        (Error::SnapshotExists { name }, Refused::SnapshotExists)
        | (Error::SnapshotDoesNotExist { name }, Refused::SnapshotDoesNotExist) => name == text,
        (
            Error::SnapshotNotCompatible { name, expected, actual },
            Refused::SnapshotNotCompatible { actual: stored },
        ) => name == text && expected == label && actual == stored,
        _ => false,
    };
    assert!(agrees, "got {error:?}, the model says {refused:?}");
}

fn drive(place: Place, rng: &mut impl Draw) {
    let swarm = Swarm::draw(rng);
    let mut lockstep = Lockstep::new(place);
    for _ in 0..120 {
        lockstep.step(&swarm, rng);
    }
    lockstep.end(&swarm);
}

#[test]
fn any_history_gives_the_models_answers_on_the_simulated_disk() {
    for_each_seed("any_history_gives_the_models_answers_on_the_simulated_disk", 16, |rng, seed| {
        drive(Place::simulated(seed), rng);
    });
}

#[test]
fn any_history_gives_the_models_answers_on_the_real_disk() {
    for_each_seed("any_history_gives_the_models_answers_on_the_real_disk", 6, |rng, _| {
        drive(Place::real(), rng);
    });
}
