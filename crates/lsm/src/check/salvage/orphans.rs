//! Runs and log records that nothing names, since no copy of the manifest is whole.
//!
//! Nothing tells which table a run was of, or which of two runs is newer. So each run becomes a
//! table of its own, `recovered-N`, with the values that its entries have; a deletion leaves its
//! key out. The updates that the log has of a table become a table `recovered-log-N`: the log says
//! their order. Such tables are parts of the lost tables, and older than them or younger.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use terrane_io::files::read_file;
use terrane_io::{Access, EntryKind, OpenMode};

use super::{Damaged, Salvaged};
use crate::block::page::PAGE_SIZE;
use crate::check::verify::{KeyGap, LostWhat};
use crate::config::TableConfig;
use crate::entry::entry::{Kind, Update};
use crate::error::{Error, Result};
use crate::files::file_set::{blobs_name, file_name, file_number};
use crate::manifest::snapshot_meta::{MANIFEST_BYTES_MAX, SessionMeta};
use crate::manifest::wal::{LOG, SegmentScan, segment_name, segments};
use crate::run::check::{Pages, Step};
use crate::run::run::{RunMeta, read_meta};
use crate::run::salvage::{Blobs, Gaps};
use crate::session::inner::{ACTIVE, METADATA};
use crate::store::options::TableName;
use crate::store::store::{NamedTable, Store};

/// Bytes of keys and values that one commit takes.
const COMMIT_BYTES: usize = 1 << 20;

/// Owned update: key, value, and perhaps a blob.
type Owned = (Vec<u8>, Vec<u8>, Option<Arc<[u8]>>);

/// Makes tables of the runs that no snapshot refers to, and of the log.
pub(super) fn recover(old: &Damaged<'_>, store: &Store, report: &mut Salvaged) -> Result<()> {
    let active = old.dir.join(ACTIVE);
    let wanted = old.wanted();
    let mut salt = None;
    if old.disk.kind(&active)? == Some(EntryKind::Directory) {
        let entries = old.disk.list(&active)?;
        let numbers = entries.iter().filter_map(|entry| file_number(&entry.name));
        for number in numbers.filter(|number| !wanted.contains(number)) {
            let meta = recover_run(old, store, number, report)?;
            salt = salt.or(meta.map(|meta| meta.salt));
        }
    }

    let metadata = read_file(old.disk.as_ref(), &old.dir.join(METADATA), MANIFEST_BYTES_MAX);
    let stored = metadata.ok().and_then(|bytes| SessionMeta::decode(&bytes).ok());
    // Records cannot be checked without the salt.
    if let Some(salt) = stored.map(|meta| meta.salt).or(salt) {
        recover_log(old, store, salt, report)?;
    }
    Ok(())
}

/// Creates a table of this name.
fn new_table(store: &Store, name: &str) -> Result<NamedTable> {
    store.create_table(&TableName::new(name)?, &TableConfig::default())
}

/// Writes the whole entries of a run to a table. Returns the footer, if that is whole.
fn recover_run(
    old: &Damaged<'_>,
    store: &Store,
    number: u64,
    report: &mut Salvaged,
) -> Result<Option<RunMeta>> {
    let path = old.dir.join(ACTIVE).join(file_name(number));
    let file = old.disk.open(&path, OpenMode::Read, Access::Buffered)?;
    // Checksums of pages depend on the identity of the run, which only the footer has.
    let meta = match read_meta(&path, file.as_ref()) {
        Ok(meta) => meta,
        Err(Error::Corrupt { .. }) => {
            let keys = vec![KeyGap::default()];
            let pages = file.len()? / PAGE_SIZE as u64;
            let what = LostWhat::Entries { keys, entries: None, pages, shows_older: false };
            report.lose(path, what);
            return Ok(None);
        }
        Err(Error::Disk(error)) if error.is_unreadable() => return Ok(None),
        Err(error) => return Err(error),
    };

    let blobs_path = old.dir.join(ACTIVE).join(blobs_name(number));
    let blobs_file = old.disk.open(&blobs_path, OpenMode::Read, Access::Buffered).ok();
    let mut blobs =
        blobs_file.as_deref().map(|file| Blobs::new(file, meta.identity)).transpose()?;
    let table = new_table(store, &format!("recovered-{number}"))?;

    // Entries before and behind damage bound the keys that are lost.
    let mut gaps = Gaps::default();
    let mut blob_gaps = Gaps::default();
    let mut lost_blobs = 0;
    let mut read = 0;
    let mut batch = Batch::default();
    Pages::new(file.as_ref(), meta.identity, meta.data_pages).going_on().walk(&mut |step| {
        let met = match step {
            Step::Entry(met) => met,
            Step::Damage(_) => {
                gaps.open();
                return Ok(());
            }
        };
        gaps.pass(met.entry.key);
        read += 1;

        let mut blob = None;
        // The table is new, so a deletion has nothing to hide.
        match met.entry.kind {
            Kind::Delete | Kind::TooLarge => return Ok(()),
            Kind::Insert | Kind::Upsert => blob_gaps.pass(met.entry.key),
            Kind::InsertBlob => {
                let found = blobs.as_mut().map(|blobs| blobs.read(met.entry.blob)).transpose()?;
                blob = found.flatten();
                if blob.is_some() {
                    blob_gaps.pass(met.entry.key);
                } else {
                    lost_blobs += 1;
                    blob_gaps.open();
                }
            }
        }
        batch.add(&table, met.entry.key.to_vec(), met.entry.value.to_vec(), blob)
    })?;
    batch.commit(&table)?;

    let gaps = gaps.finish();
    if !gaps.is_empty() {
        let entries = Some(meta.entries.saturating_sub(read));
        let pages = gaps.len() as u64;
        let what = LostWhat::Entries { keys: gaps, entries, pages, shows_older: false };
        report.lose(path, what);
    }
    if lost_blobs > 0 {
        report.lose(blobs_path, LostWhat::Blobs { keys: blob_gaps.finish(), blobs: lost_blobs });
    }
    Ok(Some(meta))
}

/// Updates that wait for a commit.
#[derive(Default)]
struct Batch {
    updates: Vec<Owned>,
    bytes: usize,
}

impl Batch {
    fn add(
        &mut self,
        table: &NamedTable,
        key: Vec<u8>,
        value: Vec<u8>,
        blob: Option<Arc<[u8]>>,
    ) -> Result<()> {
        self.bytes += key.len() + value.len() + blob.as_ref().map_or(0, |blob| blob.len());
        self.updates.push((key, value, blob));
        if self.bytes < COMMIT_BYTES { Ok(()) } else { self.commit(table) }
    }

    fn commit(&mut self, table: &NamedTable) -> Result<()> {
        let updates: Vec<(&[u8], Update<'_>)> = self
            .updates
            .iter()
            .map(|(key, value, blob)| {
                let update = match blob {
                    Some(blob) => Update::InsertWithBlob(value, blob),
                    None => Update::Insert(value),
                };
                (&key[..], update)
            })
            .collect();
        if !updates.is_empty() {
            // The store is closed at the end, which makes all of them durable.
            drop(table.write_batch(&updates)?);
        }
        self.updates.clear();
        self.bytes = 0;
        Ok(())
    }
}

/// Applies the records of the log, in the order of their commits and up to the first gap.
fn recover_log(old: &Damaged<'_>, store: &Store, salt: u64, report: &mut Salvaged) -> Result<()> {
    if old.disk.kind(&old.dir.join(LOG))? != Some(EntryKind::Directory) {
        return Ok(());
    }

    // Segments are used again, so their numbers are not the order of their commits.
    let mut scans = Vec::new();
    for number in segments(old.disk.as_ref(), old.dir)? {
        // A segment that cannot be opened leaves a gap, where the log ends.
        if let Ok(Some(scan)) = SegmentScan::open(old.disk.as_ref(), old.dir, salt, number) {
            scans.push(scan);
        }
    }
    scans.sort_by_key(|scan| scan.header.first);

    let mut tables: BTreeMap<u64, NamedTable> = BTreeMap::new();
    let mut last = None;
    for mut scan in scans {
        if last.is_some_and(|last| scan.header.first != last + 1) {
            let after = last.unwrap_or_default();
            let path = old.dir.join(LOG).join(segment_name(scan.header.number));
            report.lose(path, LostWhat::Commits { after, until: None });
            break;
        }
        while let Ok(Some(record)) = scan.next() {
            let Ok(parts) = record.parts() else { break };
            last = Some(record.commit);
            for part in parts {
                let table = match tables.entry(part.table) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => {
                        let name = format!("recovered-log-{}", part.table);
                        new.insert(new_table(store, &name)?)
                    }
                };
                drop(table.write_batch(&part.updates)?);
            }
        }
        last = last.or(Some(scan.header.first.saturating_sub(1)));
    }
    Ok(())
}
