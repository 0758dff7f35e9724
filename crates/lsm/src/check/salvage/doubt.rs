//! Doubtful entries: what a salvaged table shows for a key whose newest entry is perhaps lost.
//!
//! A damaged page of a run takes the entries of some keys with it. Where an older run has an entry
//! of such a key, the table shows the older entry, which may have been replaced or deleted. The
//! range of the lost keys is known, and the filter of the run tells for most other keys of the
//! range that they were not among the lost ones.
//!
//! An entry of a lost range is certain if
//!
//! - the filter of the damaged run lacks the key, or
//! - a newer run, or the log, sets or deletes the key, so that the lost entry did not count.
//!
//! All other entries of the range move to a table `NAME-doubtful`, in the commit that deletes them
//! from the table. Invariant: no entry is ever in neither. If a filter is wrong about a key, which
//! is rare, a certain entry moves too.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use terrane_io::files::read_file;
use terrane_io::{Access, OpenMode};

use super::{Damaged, Salvaged};
use crate::block::page::PAGE_SIZE;
use crate::check::verify::{KeyGap, Lost, LostWhat};
use crate::config::TableConfig;
use crate::entry::entry::{Kind, Update, key_hash};
use crate::error::{Error, Result};
use crate::files::file_set::{FileSet, file_name, file_number};
use crate::files::handles::{FileHandles, OPEN_FILES_DEFAULT};
use crate::lookup::result::Record;
use crate::manifest::manifest::COPIES;
use crate::manifest::snapshot_meta::{
    LevelRef, MANIFEST_BYTES_MAX, MaskedRef, SessionMeta, SnapshotMeta,
};
use crate::manifest::wal::SegmentScan;
use crate::run::check::{Pages, Step};
use crate::run::run::{Purpose, Run};
use crate::session::inner::{ACTIVE, METADATA, SNAPSHOTS};
use crate::session::snapshot::SnapshotName;
use crate::store::options::TableName;
use crate::store::store::{NamedTable, Store};
use crate::table::session::Session;
use crate::table::table::Table;

/// Suffix of the names of tables and snapshots with doubtful entries.
const DOUBTFUL: &str = "doubtful";

/// Entries that one commit moves.
const CHUNK: usize = 256;

/// Keys that the log sets or deletes, by the number of the table.
pub(super) type DecidedKeys = BTreeMap<u64, BTreeSet<Vec<u8>>>;

/// Entry that moves, with its blob.
type Doubtful = (Record, Option<Vec<u8>>);

/// Reads the log of the new store, which the repair has left whole, before opening the store
/// changes it.
pub(super) fn keys_in_log(old: &Damaged<'_>, new: &Path) -> Result<DecidedKeys> {
    let mut decided = DecidedKeys::new();
    let Some(manifest) = old.manifest.as_ref().filter(|manifest| manifest.segment > 0) else {
        return Ok(decided);
    };

    let metadata = read_file(old.disk.as_ref(), &new.join(METADATA), MANIFEST_BYTES_MAX)?;
    let Ok(SessionMeta { salt, .. }) = SessionMeta::decode(&metadata) else { return Ok(decided) };
    let mut commit = manifest.commit;
    for number in manifest.segment.. {
        let scan = match SegmentScan::open(old.disk.as_ref(), new, salt, number) {
            Err(Error::Disk(error)) if error.is_not_found() => break,
            scan => scan?,
        };
        // The log ends at the first segment that does not follow on the commit before.
        let Some(mut scan) = scan.filter(|scan| scan.header.first == commit + 1) else { break };
        while let Some(record) = scan.next()? {
            commit = record.commit;
            for part in record.parts().into_iter().flatten() {
                let keys = decided.entry(part.table).or_default();
                // Upserts decide nothing: they combine with the older value, which may be the
                // doubtful one.
                let decides = |update: &Update<'_>| {
                    matches!(
                        update,
                        Update::Insert(_) | Update::InsertWithBlob(..) | Update::Delete
                    )
                };
                let updates = part.updates.iter().filter(|(_, update)| decides(update));
                keys.extend(updates.map(|(key, _)| key.to_vec()));
            }
        }
    }

    Ok(decided)
}

/// Moves the doubtful entries of all tables and snapshots, and lets go of retained versions, which
/// cannot be changed.
pub(super) fn set_aside(
    old: &Damaged<'_>,
    store: &Store,
    in_log: &DecidedKeys,
    report: &mut Salvaged,
) -> Result<()> {
    let losses: Vec<Lost> = report.lost.iter().filter(|lost| shows_older(lost)).cloned().collect();
    if losses.is_empty() {
        return Ok(());
    }

    // Retained versions cannot be changed, and would go on showing replaced values.
    for info in store.versions()? {
        store.release(info.number)?;
        let name = info.name.map(|name| name.to_string()).unwrap_or_default();
        let what = LostWhat::Version { number: info.number, name };
        report.lose(old.dir.join(COPIES[0]), what);
    }

    let mut is_all_set_aside = true;
    for lost in &losses {
        let LostWhat::Entries { keys, .. } = &lost.what else { continue };
        let Some(number) = lost.path.file_name().and_then(|name| file_number(name.to_str()?))
        else {
            continue;
        };
        let suspicion = Suspicion::new(old, number, keys);

        let tables = old.manifest.iter().flat_map(|manifest| &manifest.tables);
        for named in tables.filter(|named| lost.tables.contains(&named.name)) {
            let Ok(name) = TableName::new(&named.name) else { continue };
            let table = match store.table(&name) {
                // Only a program with the merge operator of the table can read its entries.
                Err(Error::MergeOperatorMismatch { .. }) => {
                    is_all_set_aside = false;
                    continue;
                }
                table => table?,
            };
            // Entries of keys that a newer run or the log sets or deletes are certain.
            let mut decided = suspicion.decided_by_newer_runs(old, &named.meta)?;
            decided.extend(in_log.get(&named.id).into_iter().flatten().cloned());
            report.doubtful += suspicion.move_entries(store, &table, &decided)?;
        }

        for (name, meta) in &old.snapshots {
            if lost.snapshots.contains(name) {
                let decided = suspicion.decided_by_newer_runs(old, meta)?;
                is_all_set_aside &=
                    suspicion.split_snapshot(store, (name, meta), &decided, report)?;
            }
        }
    }

    // Every older value that could show is set aside, so the report need not warn of any.
    if is_all_set_aside {
        for lost in &mut report.lost {
            if let LostWhat::Entries { shows_older, .. } = &mut lost.what {
                *shows_older = false;
            }
        }
    }

    Ok(())
}

fn shows_older(lost: &Lost) -> bool {
    matches!(lost.what, LostWhat::Entries { shows_older: true, .. })
}

/// Name for doubtful entries of a table or a snapshot.
fn doubtful_name(name: &str, number: u64) -> String {
    let long = format!("{name}-{DOUBTFUL}");
    if TableName::new(&long).is_ok() { long } else { format!("{DOUBTFUL}-{number}") }
}

/// Knowledge of the lost entries of a run.
struct Suspicion<'a> {
    number: u64,
    gaps: &'a [KeyGap],
    /// The run, if its filter can be read.
    run: Option<Run>,
}

impl<'a> Suspicion<'a> {
    fn new(old: &Damaged<'_>, number: u64, gaps: &'a [KeyGap]) -> Self {
        let handles = FileHandles::new(Arc::clone(old.disk), OPEN_FILES_DEFAULT);
        let files = Arc::new(FileSet::read_only(handles, old.dir.join(ACTIVE)));
        let run = Run::open(&files, number, Access::Buffered).ok();
        // Images have no filter, so only runs of levels tell about keys.
        let run = run.filter(|run| run.meta().purpose == Purpose::Level);
        Self { number, gaps, run }
    }

    /// Whether the run perhaps had an entry of a key, which is in a gap.
    fn may_have_had(&self, key: &[u8]) -> bool {
        self.run
            .as_ref()
            .is_none_or(|run| run.filter().contains(key_hash(run.meta().salt, key), key))
    }

    fn is_in_gap(&self, key: &[u8]) -> bool {
        self.gaps.iter().any(|gap| {
            gap.after.as_deref().is_none_or(|after| after < key)
                && gap.before.as_deref().is_none_or(|before| key < before)
        })
    }

    /// Keys of the gaps that runs above the damaged one set or delete.
    fn decided_by_newer_runs(
        &self,
        old: &Damaged<'_>,
        meta: &SnapshotMeta,
    ) -> Result<BTreeSet<Vec<u8>>> {
        let mut decided = BTreeSet::new();
        for source in newer_than(meta, self.number) {
            // Deleted ranges may hide the entries of the run.
            if !source.mask.is_empty() {
                continue;
            }
            let path = old.dir.join(ACTIVE).join(file_name(source.run.number));
            let Ok(file) = old.disk.open(&path, OpenMode::Read, Access::Buffered) else { continue };
            let pages = file.len()? / PAGE_SIZE as u64;
            let end = pages.min(source.run.data_pages.into()) as u32;
            // The newer run may be damaged too, so its pages are read as far as they go.
            Pages::new(file.as_ref(), source.run.identity, end).going_on().walk(&mut |step| {
                if let Step::Entry(met) = step
                    && met.entry.kind != Kind::Upsert
                    && self.is_in_gap(met.entry.key)
                {
                    decided.insert(met.entry.key.to_vec());
                }
                Ok(())
            })?;
        }
        Ok(decided)
    }

    /// Returns the doubtful entries of a table, in chunks that `take` gets.
    fn each_chunk(
        &self,
        (session, table): (&Session, &Table),
        decided: &BTreeSet<Vec<u8>>,
        take: &mut dyn FnMut(&[Doubtful]) -> Result<()>,
    ) -> Result<u64> {
        let mut count = 0;
        for gap in self.gaps {
            // Both keys around a gap were read from whole pages, so neither is in doubt.
            let bound =
                |key: &Option<Vec<u8>>| key.clone().map_or(Bound::Unbounded, Bound::Excluded);
            let mut cursor = table.range::<Vec<u8>, _>((bound(&gap.after), bound(&gap.before)))?;
            loop {
                let records = cursor.next_many(CHUNK)?;
                if records.is_empty() {
                    break;
                }
                let is_doubtful = |record: &Record| {
                    !decided.contains(&record.key) && self.may_have_had(&record.key)
                };
                let mut chunk = Vec::new();
                for record in records.into_iter().filter(is_doubtful) {
                    // A blob is stored with its table, so the entry takes its blob along.
                    let blob = match &record.blob {
                        Some(blob) => session.retrieve_blobs(std::slice::from_ref(blob))?.pop(),
                        None => None,
                    };
                    chunk.push((record, blob));
                }
                count += chunk.len() as u64;
                if !chunk.is_empty() {
                    take(&chunk)?;
                }
            }
        }
        Ok(count)
    }

    /// Moves the doubtful entries of a named table; returns their number.
    fn move_entries(
        &self,
        store: &Store,
        table: &NamedTable,
        decided: &BTreeSet<Vec<u8>>,
    ) -> Result<u64> {
        // The view keeps still while commits delete entries from the table.
        let view = table.view()?;
        let mut aside = None;
        self.each_chunk((store.session(), &view), decided, &mut |chunk| {
            // The second table is created only when the first doubtful entry turns up.
            let to = match &mut aside {
                Some(to) => to,
                None => aside.insert(self.table_for(store, table.name(), view.config())?),
            };
            let inserted: Vec<_> = chunk.iter().map(insertion).collect();
            let deleted: Vec<_> =
                chunk.iter().map(|(record, _)| (&record.key[..], Update::Delete)).collect();
            // One commit inserts and deletes, so that no crash leaves an entry in neither table.
            store.commit(&[(&*to, &inserted[..]), (table, &deleted[..])]).map(drop)
        })
    }

    /// Returns the table for the doubtful entries of another table.
    fn table_for(
        &self,
        store: &Store,
        name: &TableName,
        config: &TableConfig,
    ) -> Result<NamedTable> {
        let name = TableName::new(&doubtful_name(name.as_str(), self.number))?;
        match store.table(&name) {
            Err(Error::TableDoesNotExist { .. }) => store.create_table(&name, config),
            table => table,
        }
    }

    /// Replaces a snapshot that has doubtful entries by one without them, and saves them as
    /// another one. Returns `false` if this program cannot read the snapshot.
    fn split_snapshot(
        &self,
        store: &Store,
        (name, meta): (&str, &SnapshotMeta),
        decided: &BTreeSet<Vec<u8>>,
        report: &mut Salvaged,
    ) -> Result<bool> {
        let session = store.session();
        let snapshot = SnapshotName::new(name)?;
        let mut table = match session.open_snapshot(&snapshot, &meta.label) {
            Err(Error::MergeOperatorMismatch { .. }) => return Ok(false),
            table => table?,
        };

        // The cursor reads a fork, since the table loses entries meanwhile.
        let view = table.fork()?;
        let mut aside = session.new_table(table.config())?;
        let count = self.each_chunk((session, &view), decided, &mut |chunk| {
            aside.write_batch(&chunk.iter().map(insertion).collect::<Vec<_>>())?;
            let deleted: Vec<_> =
                chunk.iter().map(|(record, _)| (&record.key[..], Update::Delete)).collect();
            table.write_batch(&deleted)
        })?;
        if count == 0 {
            return Ok(true);
        }

        let mut aside_name = SnapshotName::new(&doubtful_name(name, self.number))?;
        // Doubtful entries of another run may have taken the name.
        if session.snapshot_exists(&aside_name)? {
            aside_name = SnapshotName::new(&format!("{DOUBTFUL}-{}-{SNAPSHOTS}", self.number))?;
        }
        // Doubtful entries are saved first, so that no entry is ever in neither snapshot.
        aside.save_snapshot(&aside_name, &meta.label)?;
        session.delete_snapshot(&snapshot)?;
        table.save_snapshot(&snapshot, &meta.label)?;
        report.doubtful += count;
        Ok(true)
    }
}

fn insertion((record, blob): &Doubtful) -> (&[u8], Update<'_>) {
    let update = match blob {
        Some(blob) => Update::InsertWithBlob(&record.value, blob),
        None => Update::Insert(&record.value),
    };
    (&record.key, update)
}

/// Runs of a table that are newer than the one with this number. Runs of one union are of one age.
fn newer_than(meta: &SnapshotMeta, number: u64) -> Vec<&MaskedRef> {
    let is_it = |source: &&MaskedRef| source.run.number == number;
    // Images are stored oldest first.
    let images = meta.images.iter().rev();
    let levels = meta.levels.iter().flat_map(LevelRef::sources);
    let all: Vec<_> = images.chain(&meta.flushed).chain(levels).collect();
    // A run of the union stands behind all levels, so all of them are newer.
    let end = all.iter().position(is_it).unwrap_or(all.len());
    all[..end].to_vec()
}
