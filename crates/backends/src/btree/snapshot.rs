//! Snapshot of the index, read as tables, and cursors over a table.

use std::ops::Range;
use std::sync::Arc;

use terrane_btree::{Index, IndexReader};
use terrane_kv::gap::{Gap, GapCursor, Way};
use terrane_kv::overlay::snapshot::Snapshot;
use terrane_kv::{Cursor, Entry, Error, Result};

use super::options::{NAME, broken, error};
use super::row::{self, MAIN, NAMES, PIECE_BYTES, Row, Split, read_row};
use super::tables::{entries_of, names_of, stored_tables};

/// Pieces that one lookup reads.
const PIECES_AT_ONCE: usize = 4096;

/// Snapshot of the index, by tables.
pub struct BtreeSnapshot {
    pub(super) source: Source,
    pub(super) tables: Arc<[(Vec<u8>, u8)]>,
}

/// Source of a snapshot.
pub(super) enum Source {
    /// A snapshot of this process's index.
    Own { snapshot: terrane_btree::Snapshot, _index: Arc<Index> },
    /// A reader of another process's index, which stays at its commit while a snapshot shares it.
    Reader(Arc<IndexReader>),
}

impl Source {
    fn find(&self, key: &[u8]) -> terrane_btree::Result<Option<Vec<u8>>> {
        match self {
            Self::Own { snapshot, .. } => snapshot.find(key),
            Self::Reader(reader) => reader.find(key),
        }
    }

    fn find_many(&self, keys: &[&[u8]]) -> terrane_btree::Result<Vec<Option<Vec<u8>>>> {
        match self {
            Self::Own { snapshot, .. } => snapshot.find_many(keys),
            Self::Reader(reader) => reader.find_many(keys),
        }
    }

    fn range(&self, range: Range<Vec<u8>>) -> terrane_btree::Result<terrane_btree::Cursor> {
        match self {
            Self::Own { snapshot, .. } => snapshot.range(range),
            Self::Reader(reader) => reader.range(range),
        }
    }

    fn range_back(&self, range: Range<Vec<u8>>) -> terrane_btree::Result<terrane_btree::Cursor> {
        match self {
            Self::Own { snapshot, .. } => snapshot.range_back(range),
            Self::Reader(reader) => reader.range_back(range),
        }
    }
}

impl BtreeSnapshot {
    /// The snapshot that a reader of the index has now, with the tables of these indexes.
    pub(super) fn of_reader(reader: Arc<IndexReader>, indexes: &[&str]) -> Result<Self> {
        let rows = reader.range([NAMES]..[MAIN]).map_err(|failure| error("open", failure))?;
        // An index without rows of names was made by something else.
        let Some(known) = stored_tables(rows)? else {
            return Err(broken("the index is not one of tables".to_owned()));
        };

        // A reader cannot make a table, so each name must be known.
        let table = |name: String| {
            let key = row::name_key(&name);
            let found = known.iter().find(|(known, _)| *known == key).cloned();
            let why = "the database has no such index, and is open for reading only".to_owned();
            found.ok_or(Error::Unsupported { back_end: NAME, option: name, why })
        };

        let tables: Result<Vec<_>> = names_of(indexes).map(table).collect();
        Ok(Self { source: Source::Reader(reader), tables: tables?.into() })
    }

    /// The value that a row stands for.
    fn value(&self, key: &[u8], mut row: Vec<u8>) -> Result<Vec<u8>> {
        match read_row(key, &row)? {
            Row::Whole(_) => {
                // The first byte is the tag of the row.
                row.remove(0);
                Ok(row)
            }
            Row::Split(split) => {
                let mut values = self.values(&[(key, split)])?;
                values.pop().ok_or_else(|| broken(format!("value of row {key:02x?}")))
            }
        }
    }

    /// Reads values in pieces, [`PIECES_AT_ONCE`] pieces at a time.
    fn values(&self, splits: &[(&[u8], Split)]) -> Result<Vec<Vec<u8>>> {
        // The pieces of all values are read together, a bounded number at a time.
        let keys: Vec<[u8; 13]> = splits
            .iter()
            .flat_map(|(_, split)| (0..split.pieces()).map(|number| split.piece_key(number)))
            .collect();

        let mut values = Vec::with_capacity(splits.len());
        let mut rest = splits.iter();

        let mut value: Option<(&[u8], Split, Vec<u8>)> = None;
        for keys in keys.chunks(PIECES_AT_ONCE) {
            let refs: Vec<&[u8]> = keys.iter().map(<[u8; 13]>::as_slice).collect();
            let pieces = self.source.find_many(&refs).map_err(|failure| error("get", failure))?;
            for (at, piece) in refs.iter().zip(pieces) {
                let next = || rest.next().map(|(key, split)| (*key, *split, Vec::new()));
                // The pieces of a value may lie in two chunks of keys.
                let Some((key, split, mut bytes)) = value.take().or_else(next) else { continue };
                let missing = split.bytes as usize - bytes.len();

                // Every piece but the last one is full.
                let piece = piece.filter(|piece| piece.len() == missing.min(PIECE_BYTES));
                let Some(piece) = piece else {
                    let what = format!("piece {at:02x?} of row {key:02x?}");
                    return Err(broken(what));
                };

                bytes.extend_from_slice(&piece);
                if bytes.len() == split.bytes as usize {
                    values.push(bytes);
                } else {
                    value = Some((key, split, bytes));
                }
            }
        }

        debug_assert_eq!(values.len(), splits.len(), "a value for each row");
        Ok(values)
    }
}

impl Snapshot for BtreeSnapshot {
    fn get(&self, table: usize, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let key = row::key(self.tables[table].1, key);
        let row = self.source.find(&key).map_err(|failure| error("get", failure))?;
        row.map(|row| self.value(&key, row)).transpose()
    }

    fn get_many(&self, table: usize, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        let keys: Vec<Vec<u8>> =
            keys.iter().map(|key| row::key(self.tables[table].1, key)).collect();
        let refs: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let found = self.source.find_many(&refs);
        let mut values = found.map_err(|failure| error("get_many", failure))?;
        let mut splits = Vec::new();

        let mut places = Vec::new();
        for (at, (key, value)) in refs.iter().zip(&mut values).enumerate() {
            let Some(row) = value else { continue };
            match read_row(key, row)? {
                Row::Whole(_) => drop(row.remove(0)),
                Row::Split(split) => {
                    splits.push((*key, split));
                    places.push(at);
                }
            }
        }

        for (at, value) in places.into_iter().zip(self.values(&splits)?) {
            values[at] = Some(value);
        }

        Ok(values)
    }

    fn cursor(&self, table: usize) -> Result<Box<dyn Cursor + '_>> {
        Ok(Box::new(TableCursor { rooted: self, table, gap: Gap::First, going: None }))
    }

    fn count(&self, table: usize) -> Result<u64> {
        let key = &self.tables[table].0;
        let row = self.source.find(key).map_err(|failure| error("count", failure))?;
        entries_of(key, row.as_deref())
    }
}

/// Cursor over a table: a cursor of the index in the direction of the last step.
///
/// Invariant: the cursor of the index stands at the gap.
struct TableCursor<'a> {
    rooted: &'a BtreeSnapshot,
    table: usize,
    gap: Gap<Vec<u8>>,
    going: Option<(Way, terrane_btree::Cursor)>,
}

impl TableCursor<'_> {
    /// Opens a cursor of the index from the gap to the end of the table in one direction.
    fn begin(&self, way: Way) -> terrane_btree::Result<terrane_btree::Cursor> {
        let number = self.rooted.tables[self.table].1;
        let source = &self.rooted.source;
        let low = vec![number];
        // Tables have numbers of up to 254, so the sum fits into a byte.
        let high = vec![number + 1];

        let at = |key: &[u8]| row::key(number, key);
        // No key lies between a key and that key with a zero byte behind it.
        let behind = |key: &[u8]| [at(key), vec![0]].concat();
        let at = match &self.gap {
            Gap::First => low.clone(),
            Gap::Last => high.clone(),
            Gap::Before(key) => at(key),
            Gap::After(key) => behind(key),
        };

        match way {
            Way::Forward => source.range(at..high),
            Way::Backward => source.range_back(low..at),
        }
    }
}

impl GapCursor for TableCursor<'_> {
    type Key = Vec<u8>;

    fn go_to(&mut self, gap: Gap<Vec<u8>>) -> Result<()> {
        self.gap = gap;
        self.going = None;
        Ok(())
    }

    fn step(&mut self, way: Way) -> Result<Option<Entry>> {
        let failed = |failure| error("cursor", failure);
        // A cursor that turns begins anew at its gap.
        let going = self.going.take().filter(|(going, _)| *going == way);
        let mut going = match going {
            Some((_, going)) => going,
            None => self.begin(way).map_err(failed)?,
        };

        let found = going.next_ref().map_err(failed)?;
        let found = found.map(|(key, row)| (key.to_vec(), row.to_vec()));
        self.going = Some((way, going));
        let Some((mut key, row)) = found else { return Ok(None) };
        let value = self.rooted.value(&key, row)?;
        key.remove(0);
        self.gap = way.past(key.clone());

        Ok(Some((key, value)))
    }
}
