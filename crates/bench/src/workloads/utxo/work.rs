//! The operations of a run, one batch after the other.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use terrane::lsm::{Lookup, PendingLookups, Table, TableStats, Update};

use super::draws::{DrawReader, Draws};
use super::options::{Mode, Options};
use super::{Key, Prepared, Value, entry, key, merge_debt_bytes, value};
use crate::instruments::meter::{Usage, rss_peak_bytes};
use crate::workloads::{Error, Result, splitmix};
use terrane_replay::latency::Latency;
use terrane_replay::monitor::{Monitor, Phase};

/// Keys that are looked up at once when the table is compared.
const COMPARED_AT_ONCE: usize = 1 << 12;

/// Counters at one moment.
#[derive(Debug)]
pub(super) struct Moment {
    pub(super) at: Instant,
    pub(super) usage: Usage,
    pub(super) stats: TableStats,
    pub(super) rss_peak_bytes: u64,
}

/// A batch of lookups under way.
struct Ahead {
    /// Its position in the order of all batches.
    batch: u64,
    numbers: Vec<u64>,
    keys: Vec<Key>,
    pending: PendingLookups,
    submitted: Instant,
}

/// Patches of pipelined lookups: the changes of the batches since the submission.
#[derive(Debug, Default)]
struct Patches {
    /// With the batch that did it last.
    changed: HashMap<Key, (u64, Option<Value>)>,
    /// The keys of each batch that is remembered, oldest first.
    batches: VecDeque<(u64, Vec<Key>)>,
}

impl Patches {
    fn note(&mut self, batch: u64, deleted: &[Key], inserted: &[(Key, Value)]) {
        let mut keys = deleted.to_vec();
        self.changed.extend(deleted.iter().map(|key| (*key, (batch, None))));
        keys.extend(inserted.iter().map(|(key, _)| *key));
        let inserted = inserted.iter().map(|(key, value)| (*key, (batch, Some(*value))));
        self.changed.extend(inserted);
        self.batches.push_back((batch, keys));
    }

    /// Forgets what batches before this one have changed.
    fn forget_before(&mut self, batch: u64) {
        while let Some((of, _)) = self.batches.front()
            && *of < batch
            && let Some((of, keys)) = self.batches.pop_front()
        {
            for key in keys {
                if self.changed.get(&key).is_some_and(|(last, _)| *last == of) {
                    self.changed.remove(&key);
                }
            }
        }
    }

    /// Corrects what was found of a key in a state that had all batches before `from`.
    fn correct(&self, from: u64, key: &Key, found: &mut Lookup) {
        if let Some((batch, value)) = self.changed.get(key)
            && *batch >= from
        {
            *found = value.map_or(Lookup::NotFound, |value| Lookup::Found(value.as_slice().into()));
        }
    }
}

/// A run under way.
pub(super) struct Work<'a> {
    table: Table,
    options: &'a Options,
    prepared: Prepared,
    draws: DrawReader<'a>,
    monitor: &'a mut dyn Monitor,
    /// Numbers of the present batch.
    numbers: Vec<u64>,
    keys: Vec<Key>,
    expected: Vec<Value>,
    inserted: Vec<(Key, Value)>,
    /// Hash over all values found, in their order.
    results: u64,
    done: u64,
    pub(super) lookups: Latency,
    pub(super) updates: Latency,
    pub(super) missing: u64,
    /// Time spent on making keys and values.
    pub(super) generating: Duration,
}

impl<'a> Work<'a> {
    pub(super) fn new(
        table: Table,
        draws: DrawReader<'a>,
        prepared: Prepared,
        options: &'a Options,
        monitor: &'a mut dyn Monitor,
    ) -> Self {
        Self {
            table,
            options,
            prepared,
            draws,
            monitor,
            numbers: Vec::new(),
            keys: Vec::new(),
            expected: Vec::new(),
            inserted: Vec::new(),
            results: 0,
            done: 0,
            lookups: Latency::new(),
            updates: Latency::new(),
            missing: 0,
            generating: Duration::ZERO,
        }
    }

    pub(super) fn moment(&self) -> Moment {
        Moment {
            at: Instant::now(),
            usage: Usage::now().unwrap_or_default(),
            stats: self.table.stats(),
            rss_peak_bytes: rss_peak_bytes().unwrap_or(0),
        }
    }

    /// Batches done.
    pub(super) fn batches(&self) -> u64 {
        self.done
    }

    /// Returns the most reads in flight at once.
    pub(super) fn reads_in_flight(&self) -> u64 {
        match self.options.mode {
            Mode::UpdateOnly => 0,
            Mode::Sequential | Mode::LookupOnly | Mode::Pipelined => {
                u64::from(self.table.config().queue_depth)
                    .min(self.options.batch_size * self.options.in_flight)
            }
        }
    }

    pub(super) fn result_hash(&self) -> String {
        format!("{:016x}", self.results)
    }

    /// Does all batches.
    ///
    /// # Errors
    /// Those of the engine, a wrong value, [`Error::Interrupted`].
    pub(super) fn done(mut self) -> Result<Self> {
        match self.options.mode {
            Mode::Sequential => self.one_after_the_other(true)?,
            Mode::UpdateOnly => self.update_only()?,
            Mode::LookupOnly if self.options.in_flight == 1 => self.one_after_the_other(false)?,
            Mode::LookupOnly => self.overlapped(false)?,
            Mode::Pipelined => self.overlapped(true)?,
        }
        Ok(self)
    }

    /// Looks up each batch and then updates it.
    fn one_after_the_other(&mut self, has_updates: bool) -> Result<()> {
        for batch in 0..self.options.batches {
            self.next_batch()?;
            let start = Instant::now();
            let found = self.table.get_many(&self.keys)?;
            self.lookups.record(start.elapsed());
            self.verify(batch, &found)?;
            if has_updates {
                self.update(batch)?;
            }
            self.end_batch()?;
        }

        Ok(())
    }

    /// Continues after the last batch until the merge debt is that of the beginning, or all draws
    /// are used.
    fn update_only(&mut self) -> Result<()> {
        let debt = merge_debt_bytes(&self.table.stats());
        let batches_max = self.options.batches + self.options.batches.div_ceil(2);
        for batch in 0..batches_max {
            if batch >= self.options.batches && merge_debt_bytes(&self.table.stats()) <= debt {
                break;
            }
            self.next_batch()?;
            self.update(batch)?;
            self.end_batch()?;
        }

        Ok(())
    }

    /// Submits lookups of later batches before the updates of earlier ones, and patches their
    /// results.
    fn overlapped(&mut self, has_updates: bool) -> Result<()> {
        let batches = self.options.batches;
        let in_flight = self.options.in_flight.max(1);

        // Invariant: at most `in_flight` batches are submitted and not yet answered.
        let mut ahead = VecDeque::new();
        let mut patches = Patches::default();
        for batch in 0..batches + in_flight {
            if batch < batches {
                ahead.push_back(self.submit(batch)?);
                debug_assert!(ahead.len() as u64 <= in_flight);
            }

            if batch + 1 < in_flight {
                continue;
            }
            let Some(next) = ahead.pop_front() else { break };
            let Ahead { batch, numbers, keys, pending, submitted } = next;
            let mut found = pending.wait()?;
            self.lookups.record(submitted.elapsed());
            (self.numbers, self.keys) = (numbers, keys);

            if has_updates {
                // At the submission, only the batches before `from` had been applied.
                let from = (batch + 1).saturating_sub(in_flight);
                patches.forget_before(from);
                for (key, found) in self.keys.iter().zip(&mut found) {
                    patches.correct(from, key, found);
                }
            }

            self.verify(batch, &found)?;
            if has_updates {
                self.update(batch)?;
                patches.note(batch, &self.keys, &self.inserted);
            }

            self.end_batch()?;
        }

        Ok(())
    }

    /// Draws the next batch.
    fn next_batch(&mut self) -> Result<()> {
        self.draws.next_batch(&mut self.numbers)?;
        let start = Instant::now();
        self.keys.clear();
        let seed = self.prepared.seed;
        self.keys.extend(self.numbers.iter().map(|&number| key(seed, number)));
        self.generating += start.elapsed();
        Ok(())
    }

    /// Draws a batch and submits its lookups.
    fn submit(&mut self, batch: u64) -> Result<Ahead> {
        self.next_batch()?;
        let submitted = Instant::now();
        let pending = self.table.submit(&self.keys)?;
        let numbers = std::mem::take(&mut self.numbers);
        let keys = std::mem::take(&mut self.keys);
        Ok(Ahead { batch, numbers, keys, pending, submitted })
    }

    /// Compares the answers of a batch with the expected values.
    fn verify(&mut self, batch: u64, found: &[Lookup]) -> Result<()> {
        let start = Instant::now();
        debug_assert_eq!(found.len(), self.numbers.len());
        self.expected.clear();
        let seed = self.prepared.seed;
        self.expected.extend(self.numbers.iter().map(|&number| value(seed, number)));
        self.generating += start.elapsed();

        for (at, (expected, found)) in self.expected.iter().zip(found).enumerate() {
            match found.value() {
                None => self.missing += 1,
                Some(found) if found == expected => {
                    // The whole value has been compared, so a part of it suffices for the hash.
                    let part = found.first_chunk().map_or(0, |part| u64::from_le_bytes(*part));
                    self.results = splitmix(self.results ^ part);
                }
                Some(found) => {
                    let number = self.numbers[at];
                    let message = format!("batch {batch}, entry {number}: found {found:02x?}");
                    return Err(Error::Wrong(message));
                }
            }
        }

        Ok(())
    }

    /// Deletes the present batch and inserts new entries.
    fn update(&mut self, batch: u64) -> Result<()> {
        let generating = Instant::now();
        let seed = self.prepared.seed;
        let count = self.options.batch_size;
        let numbers = self.prepared.inserted_from(batch, count)..;
        self.inserted.clear();
        let fresh = numbers.take(count as usize).map(|number| entry(seed, number));
        self.inserted.extend(fresh);
        self.generating += generating.elapsed();

        let deletes = self.keys.iter().map(|key| (key, Update::Delete));
        let inserts = self.inserted.iter().map(|(key, value)| (key, Update::Insert(value)));
        let updates: Vec<_> = deletes.chain(inserts).collect();
        let start = Instant::now();
        self.table.write_batch(&updates)?;
        self.updates.record(start.elapsed());

        Ok(())
    }

    /// Counts a batch and asks the monitor whether to stop.
    fn end_batch(&mut self) -> Result<()> {
        self.done += 1;
        let size = self.options.batch_size;
        let all = self.options.batches;
        self.monitor.progress(Phase::Operations, self.done * size, Some(all.max(self.done) * size));
        if self.monitor.stop() { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Compares the whole table with the expected entries after that many batches, in one scan, and
    /// looks for some deleted keys.
    ///
    /// # Errors
    /// [`Error::Wrong`], those of the engine.
    pub(super) fn compare(&self, draws: &Draws, batches: u64) -> Result<()> {
        let seed = self.prepared.seed;

        // Sums of fingerprints compare both sets without an order and without memory for them.
        let mut expected = 0;
        let mut sum = 0_u128;
        for number in draws.live_after(batches)? {
            let (key, value) = entry(seed, number);
            sum = sum.wrapping_add(fingerprint(&key, &value));
            expected += 1;
        }

        let mut cursor = self.table.cursor()?;

        let mut count = 0_u64;
        let mut found = 0_u128;
        while let Some(entry) = cursor.next_ref()? {
            count += 1;
            found = found.wrapping_add(fingerprint(entry.key, entry.value));
        }

        if (count, found) != (expected, sum) {
            let message = format!("the table has {count} entries, not the {expected} expected");
            let same = "the table has the expected number of entries, but other entries";
            let message = if count == expected { same.to_owned() } else { message };
            return Err(Error::Wrong(message));
        }

        self.look_for_deleted(draws, batches)
    }

    fn look_for_deleted(&self, draws: &Draws, batches: u64) -> Result<()> {
        let mut reader = draws.read()?;

        let mut numbers = Vec::new();
        let mut keys = Vec::new();
        for _ in 0..batches {
            reader.next_batch(&mut numbers)?;
            keys.extend(numbers.iter().map(|&number| key(self.prepared.seed, number)));
            if keys.len() >= COMPARED_AT_ONCE {
                break;
            }
        }

        match self.table.get_many(&keys)?.iter().position(Lookup::is_found) {
            Some(at) => Err(Error::Wrong(format!("deleted key {:02x?} is found", keys[at]))),
            None => Ok(()),
        }
    }
}

/// Fingerprint of an entry. The sum of fingerprints stands for a set of entries.
fn fingerprint(key: &[u8], value: &[u8]) -> u128 {
    let hash = *blake3::Hasher::new().update(key).update(value).finalize().as_bytes();
    u128::from_le_bytes(*hash.first_chunk().unwrap_or(&[0; 16]))
}
