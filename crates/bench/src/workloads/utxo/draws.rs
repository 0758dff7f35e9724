//! Entries that a run looks up and deletes, drawn before the run, so that drawing costs the run
//! nothing.
//!
//! An operation draws uniformly among all that live; what it draws is gone, and the next number is
//! there in its place. A batch draws nothing twice, and nothing that it inserts itself. The draws
//! lie in a file without a name, four bytes each, the offset of the number from the first one; so a
//! long run takes no memory for them, and the file is gone with the process.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Instant;

use super::{Prepared, check_numbers, entry};
use crate::workloads::{Error, Result, seconds, splitmix};
use terrane_replay::monitor::{Monitor, Phase};

/// The file, while it has a name.
const FILE_NAME: &str = "bench-utxo-draws";

/// Draws that are held in memory of the file.
const BUFFER_BYTES: usize = 64 << 10;

/// Kind of a draw: which operations its numbers are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The entry is deleted, and the next number takes its place.
    Replaced,
    /// The entry stays. Until half of all have been drawn, none is drawn twice.
    Kept,
}

/// The draws of a run.
#[derive(Debug)]
pub struct Draws {
    file: File,
    /// Prepared table whose entries are drawn.
    pub prepared: Prepared,
    /// Batches drawn.
    pub batches: u64,
    /// Operations in each.
    pub batch_size: u64,
    /// Numbers that were drawn more than once.
    pub duplicates: u64,
    /// BLAKE3 of all operations: for each the key that is looked up and deleted, the key and value
    /// that are inserted.
    pub stream_hash: blake3::Hash,
    /// Time to draw, in seconds.
    pub draw_s: f64,
    /// Time to make keys and values, in seconds.
    pub generate_s: f64,
}

/// Live numbers by place.
struct Live {
    entries: u64,
    kind: Kind,
    /// Offsets that have been drawn.
    seen: Bitmap,
    /// Number of live entries.
    seen_count: u64,
    /// Places whose first number is gone, and what is there now, as offsets from the first number.
    moved: HashMap<u32, u32>,
    random: u64,
    drawn: u64,
}

impl Live {
    /// A place.
    fn place(&mut self) -> u32 {
        self.drawn += 1;
        let random = splitmix(self.random ^ splitmix(self.drawn));
        // The bias is 2^-32 at the most.
        ((u128::from(random) * u128::from(self.entries)) >> 64) as u32
    }

    /// Draws a batch, whose first insertion has the offset `next`; returns how many were drawn
    /// before.
    fn batch(&mut self, size: u64, next: u64, out: &mut Vec<u32>) -> u64 {
        if self.kind == Kind::Kept && (self.seen_count + size) * 2 > self.entries {
            (self.seen, self.seen_count) = (Bitmap::new(self.entries), 0);
        }

        let mut taken = HashSet::with_capacity(size as usize);
        let mut duplicates = 0;
        while (out.len() as u64) < size {
            let place = self.place();
            let is_again = self.kind == Kind::Kept && self.seen.contains(u64::from(place));
            if is_again || !taken.insert(place) {
                continue;
            }
            let fresh = (next + out.len() as u64) as u32;
            let drawn = match self.kind {
                Kind::Replaced => self.moved.insert(place, fresh).unwrap_or(place),
                Kind::Kept => place,
            };
            duplicates += u64::from(self.seen.insert(drawn));
            self.seen_count += 1;
            out.push(drawn);
        }

        duplicates
    }
}

/// A set of numbers.
struct Bitmap(Vec<u64>);

impl Bitmap {
    fn new(len: u64) -> Self {
        Self(vec![0; len.div_ceil(64) as usize])
    }

    /// Adds a number; returns whether it was there.
    fn insert(&mut self, number: u32) -> bool {
        let word = &mut self.0[number as usize / 64];
        let bit = 1 << (number % 64);
        let was_there = *word & bit != 0;
        *word |= bit;
        was_there
    }

    fn contains(&self, number: u64) -> bool {
        self.0[number as usize / 64] & 1 << (number % 64) != 0
    }
}

impl Draws {
    /// Draws for `batches` batches into a file in `dir`, which has no name when this returns.
    ///
    /// # Errors
    /// [`Error::Options`] for too many operations or too large a batch, [`Error::Io`],
    /// [`Error::Interrupted`].
    pub fn new(
        dir: &Path,
        (prepared, kind): (Prepared, Kind),
        (batches, batch_size): (u64, u64),
        monitor: &mut dyn Monitor,
    ) -> Result<Self> {
        let Prepared { seed, entries, .. } = prepared;
        check_numbers(prepared.first + entries, batches, batch_size)?;
        check_numbers(entries, batches, batch_size)?;
        let path = dir.join(FILE_NAME);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.map_err(|error| Error::io(&path, error))?;
        std::fs::remove_file(&path).map_err(|error| Error::io(&path, error))?;

        let seen = Bitmap::new(entries + batches * batch_size);
        let moved = HashMap::new();
        let random = splitmix(!seed);
        let mut live = Live { entries, kind, seen, seen_count: 0, moved, random, drawn: 0 };
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, &file);
        let mut hasher = blake3::Hasher::new();
        let mut duplicates = 0;
        let mut generate_s = 0.0;
        let start = Instant::now();

        let mut batch = Vec::new();
        for at in 0..batches {
            monitor.progress(Phase::Draw, at * batch_size, Some(batches * batch_size));
            if monitor.stop() {
                return Err(Error::Interrupted);
            }
            batch.clear();
            duplicates += live.batch(batch_size, entries + at * batch_size, &mut batch);
            for &offset in &batch {
                let written = out.write_all(&offset.to_le_bytes());
                written.map_err(|error| Error::io(&path, error))?;
            }
            let generating = Instant::now();
            prepared.hash_batch(&mut hasher, at, &batch);
            generate_s += seconds(generating);
        }

        out.flush().map_err(|error| Error::io(&path, error))?;
        drop(out);
        let stream_hash = hasher.finalize();
        let draw_s = seconds(start) - generate_s;

        Ok(Self {
            file,
            prepared,
            batches,
            batch_size,
            duplicates,
            stream_hash,
            draw_s,
            generate_s,
        })
    }

    /// The draws, from the first batch on.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn read(&self) -> Result<DrawReader<'_>> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0)).map_err(|error| Error::io(Path::new(FILE_NAME), error))?;
        let file = BufReader::with_capacity(BUFFER_BYTES, file);
        let bytes = vec![0; self.batch_size as usize * 4];
        Ok(DrawReader { file, bytes, first: self.prepared.first })
    }

    /// Returns the live numbers after that many batches.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn live_after(&self, batches: u64) -> Result<impl Iterator<Item = u64> + use<>> {
        let mut gone = Bitmap::new(self.prepared.entries + self.batches * self.batch_size);

        let mut reader = self.read()?;
        let mut batch = Vec::new();
        for _ in 0..batches {
            reader.next_batch(&mut batch)?;
            for number in &batch {
                gone.insert((number - self.prepared.first) as u32);
            }
        }

        let Prepared { first, entries, .. } = self.prepared;
        let offsets = 0..entries + batches * self.batch_size;
        Ok(offsets.filter(move |&offset| !gone.contains(offset)).map(move |offset| first + offset))
    }
}

impl Prepared {
    /// The number of the first insertion of a batch.
    pub(super) fn inserted_from(self, batch: u64, batch_size: u64) -> u64 {
        self.first + self.entries + batch * batch_size
    }

    fn hash_batch(self, hasher: &mut blake3::Hasher, at: u64, drawn: &[u32]) {
        let inserted = self.inserted_from(at, drawn.len() as u64);
        for (&offset, fresh) in drawn.iter().zip(inserted..) {
            let (key, value) = entry(self.seed, fresh);
            hasher.update(&entry(self.seed, self.first + u64::from(offset)).0);
            hasher.update(&key);
            hasher.update(&value);
        }
    }
}

/// Reads draws in their order.
#[derive(Debug)]
pub struct DrawReader<'a> {
    file: BufReader<&'a File>,
    bytes: Vec<u8>,
    first: u64,
}

impl DrawReader<'_> {
    /// The numbers that the next batch looks up and deletes.
    ///
    /// # Errors
    /// [`Error::Io`], also behind the last batch.
    pub fn next_batch(&mut self, numbers: &mut Vec<u64>) -> Result<()> {
        let read = self.file.read_exact(&mut self.bytes);
        read.map_err(|error| Error::io(Path::new(FILE_NAME), error))?;
        numbers.clear();
        let offsets = self.bytes.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes));
        numbers.extend(offsets.map(|offset| self.first + u64::from(offset)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use terrane_replay::monitor::Silent;

    fn draws(prepared: Prepared, kind: Kind, batches: u64) -> Draws {
        let dir = tempfile::tempdir().unwrap();
        let draws = Draws::new(dir.path(), (prepared, kind), (batches, 8), &mut Silent).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the file has no name");
        draws
    }

    #[test]
    fn only_what_lives_is_drawn_and_new_entries_are_drawn_as_often_as_old_ones() {
        let prepared = Prepared { seed: 3, entries: 100, first: 20 };
        let draws = draws(prepared, Kind::Replaced, 500);

        let mut live: BTreeSet<u64> = (20..120).collect();
        let mut reader = draws.read().unwrap();

        let mut batch = Vec::new();
        let mut young = 0;
        for at in 0..500 {
            reader.next_batch(&mut batch).unwrap();
            for number in &batch {
                assert!(live.remove(number), "batch {at}: {number} is not there");
            }
            let from = prepared.inserted_from(at, 8);
            young += batch.iter().filter(|&&number| number + 80 >= from).count();
            live.extend(from..from + 8);
        }

        assert!(reader.next_batch(&mut batch).is_err());
        assert_eq!(draws.duplicates, 0);
        assert_eq!(draws.live_after(500).unwrap().collect::<BTreeSet<_>>(), live);

        // Entries of at most 10 batches of age: 1 - 0.92^10 = 57 %.
        assert!((2000..2500).contains(&young), "{young} of 4000 are young");
    }

    #[test]
    fn what_is_kept_is_drawn_once_until_half_is_drawn() {
        let prepared = Prepared { seed: 3, entries: 100, first: 20 };
        let draws = draws(prepared, Kind::Kept, 12);

        let mut reader = draws.read().unwrap();
        let mut batch = Vec::new();
        for _ in 0..2 {
            let mut seen = BTreeSet::new();
            for _ in 0..6 {
                reader.next_batch(&mut batch).unwrap();
                assert!(batch.iter().all(|number| (20..120).contains(number)));
                seen.extend(batch.iter().copied());
            }
            assert_eq!(seen.len(), 48);
        }

        assert_eq!(draws.duplicates, 0);
    }

    #[test]
    fn the_stream_follows_from_the_seed_alone() {
        let prepared = Prepared { seed: 3, entries: 100, first: 20 };
        let hash = draws(prepared, Kind::Replaced, 20).stream_hash;
        assert_eq!(hash, draws(prepared, Kind::Replaced, 20).stream_hash);
        let other = Prepared { seed: 4, ..prepared };
        assert_ne!(hash, draws(other, Kind::Replaced, 20).stream_hash);
        assert_ne!(hash, draws(prepared, Kind::Replaced, 21).stream_hash);
    }

    #[test]
    fn what_cannot_be_numbered_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let prepared = Prepared { seed: 3, entries: 100, first: 0 };
        for (batches, batch_size) in [(u64::MAX, 2), (1 << 31, 2), (1, 0), (1, 51)] {
            let what = (prepared, Kind::Replaced);
            let refused = Draws::new(dir.path(), what, (batches, batch_size), &mut Silent);
            assert!(matches!(refused, Err(Error::Options(_))), "{batches} x {batch_size}");
        }
    }
}
