//! Execution of each action on the engine and on the model, and comparison of the answers.
//!
//! An action runs on the engine first. A disk error returns at once and leaves the model unchanged.
//! Any other answer must equal the model's, and the model changes too. After each return, with an
//! error or without, the engine must hold the content of the model.

use std::path::PathBuf;
use std::{panic, thread};

use terrane_lsm::{
    Error, KEY_BYTES_MAX, Lookup, OpenOptions, Record, Result, Session, SessionOptions,
    SnapshotName, Table, Update,
};
use terrane_testkit::model::{Change, Forest, MergeOperator, Refused, TableId};

use super::action::{Action, SNAPSHOTS, Slot};
use super::compare::{
    agree, canonical_entries, check_table, is_of_disk, match_lookups, match_records,
};
use super::swarm::{TABLE_BYTES_MAX, engine_resolve};
use super::world::{End, HeldTable, World, label};
use crate::name;

fn update_of(change: &Change) -> Update<'_> {
    match change {
        Change::Insert(value) => Update::Insert(value),
        Change::InsertWithBlob(value, blob) => Update::InsertWithBlob(value, blob),
        Change::Delete => Update::Delete,
        Change::Upsert(value) => Update::Upsert(value),
    }
}

/// A batch as the engine takes it.
fn updates(batch: &[(Vec<u8>, Change)]) -> Vec<(&[u8], Update<'_>)> {
    batch.iter().map(|(key, change)| (key.as_slice(), update_of(change))).collect()
}

/// All of a table, and some of its keys besides.
fn read_all(table: &Table, keys: &[Vec<u8>]) -> Result<(Vec<Lookup>, Vec<Record>)> {
    let lookups = table.get_many(keys)?;
    let records = table.cursor()?.next_many(usize::MAX)?;
    Ok((lookups, records))
}

impl World {
    /// Does an action. Returns whether there was anything to do it to.
    ///
    /// # Errors
    /// Disk errors.
    pub(crate) fn act(&mut self, action: &Action) -> Result<bool> {
        match action {
            Action::NewTable { to, config } => self.new_table(*to, *config),
            Action::Duplicate { from, to } => self.fork(*from, *to),
            Action::DropTable { table } => {
                let is_open = self.tables[*table].is_some();
                self.drop_table(*table);
                Ok(is_open)
            }
            Action::Update { table, seed, len } => self.update(*table, *seed, *len),
            Action::UpdateOne { table, seed } => self.update_one(*table, *seed),
            Action::UpdateWithLongKey { table, seed, len } => {
                self.update_with_long_key(*table, *seed, *len)
            }
            Action::DeleteRange { table, seed } => self.delete_range(*table, *seed),
            Action::Lookup { table, seed, len } => self.look_up(*table, *seed, *len),
            Action::Member { table, seed } => self.member(*table, *seed),
            Action::Range { table, seed } => self.range(*table, *seed, false),
            Action::RangeBack { table, seed } => self.range(*table, *seed, true),
            Action::Prefix { table, seed } => self.prefix(*table, *seed),
            Action::NewCursor { table, to, seed } => self.new_cursor(*table, *to, *seed),
            Action::NewPrefixCursor { table, to, seed } => {
                self.new_prefix_cursor(*table, *to, *seed)
            }
            Action::Next { cursor, .. }
            | Action::Prev { cursor, .. }
            | Action::Peek { cursor }
            | Action::PeekPrev { cursor }
            | Action::Seek { cursor, .. }
            | Action::SeekAfter { cursor, .. }
            | Action::SeekToStart { cursor }
            | Action::SeekToEnd { cursor }
            | Action::Take { cursor, .. }
            | Action::TakeBack { cursor, .. }
            | Action::TakeWhile { cursor, .. }
            | Action::TakeWhileBack { cursor, .. } => self.move_cursor(*cursor, action),
            Action::DropCursor { cursor } => {
                let is_open = self.cursors[*cursor].is_some();
                self.drop_cursor(*cursor);
                Ok(is_open)
            }
            Action::KeepBlobs { table, to, seed, len } => self.keep_blobs(*table, *to, *seed, *len),
            Action::KeepCursorBlobs { cursor, to, count } => {
                self.keep_cursor_blobs(*cursor, *to, *count)
            }
            Action::RetrieveBlobs { kept } => self.retrieve_blobs(*kept),
            Action::Union { tables, to } => self.union(tables, *to, true),
            Action::IncrementalUnion { tables, to } => self.union(tables, *to, false),
            Action::SupplyCredits { table, credits } => self.supply_credits(*table, *credits),
            Action::QueryDebt { table } => {
                let Some(held) = &mut self.tables[*table] else { return Ok(false) };
                let debt = held.table.remaining_union_debt();
                assert!(debt <= held.debt, "the debt rose from {} to {debt}", held.debt);
                held.debt = debt;
                Ok(true)
            }
            Action::Compact { table } => self.compact(*table),
            Action::Save { .. }
            | Action::DeleteSnapshot { .. }
            | Action::RenameSnapshot { .. }
            | Action::Export { .. }
            | Action::Import { .. } => self.do_change_snapshots(action),
            Action::Open { name, label, to, seed } => self.open_snapshot(*name, *label, *to, *seed),
            Action::SnapshotInfo { name } => self.snapshot_info(*name),
            Action::ListSnapshots => {
                self.compare_names();
                Ok(true)
            }
            Action::Diff { older, newer } => self.diff(*older, *newer),
            Action::Stats { table } => self.stats(*table),
            Action::ExportCanonical { table } => self.export_canonical(*table),
            Action::ImportCanonical { table, to, config } => {
                self.import_canonical(*table, *to, *config)
            }
            Action::Reconfigure { table, config } => self.reconfigure(*table, *config),
            Action::SideBySide { reader, writer, seed, len } => {
                self.side_by_side(*reader, *writer, *seed, *len)
            }
            Action::CloseAndReopen => self.end_session(End::Close),
            Action::Verify => self.end_session(End::CloseAndVerify),
            Action::Kill => self.end_session(End::Kill),
            Action::PowerCut { survival } => self.end_session(End::PowerCut(*survival)),
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "each action has this form")]
    fn end_session(&mut self, end: End) -> Result<bool> {
        let forest = self.forest.clone();
        self.restart(end, vec![forest]);
        Ok(true)
    }
}

/// Tables.
impl World {
    fn new_table(&mut self, to: Slot, config: usize) -> Result<bool> {
        let (config, resolve) = self.swarm.configs[config % self.swarm.configs.len()].clone();
        let table = self.session().new_table(&config)?;
        assert_eq!(table.config(), &config);
        let id = self.forest.new_table(resolve);
        let version = self.new_version();
        self.put_table(to, table, id, version);
        Ok(true)
    }

    fn fork(&mut self, from: Slot, to: Slot) -> Result<bool> {
        let Some(held) = &self.tables[from] else { return Ok(false) };
        let table = held.table.fork()?;
        let version = held.version;
        assert_eq!(table.remaining_union_debt(), held.table.remaining_union_debt());
        let id = self.forest.fork(held.id).unwrap();
        self.put_table(to, table, id, version);
        Ok(true)
    }

    /// The batch of a seed for a table.
    fn batch(&self, table: TableId, seed: u64, len: usize) -> Vec<(Vec<u8>, Change)> {
        let content = self.forest.content(table).unwrap();
        let bytes: usize = content.values().map(|stored| stored.value.len()).sum();
        let resolve = self.forest.resolve(table).unwrap();
        self.swarm.batch(seed, len, resolve, bytes > TABLE_BYTES_MAX)
    }

    /// Tells the model of a batch that the engine has taken.
    fn apply(&mut self, table: TableId, batch: Vec<(Vec<u8>, Change)>) {
        for (key, change) in batch {
            let is_forgotten = self.is_model_wrong && change == Change::Delete;
            if !is_forgotten {
                self.forest.update(table, &key, change).unwrap();
            }
        }
    }

    fn update(&mut self, slot: Slot, seed: u64, len: usize) -> Result<bool> {
        let version = self.new_version();
        let Some(id) = self.tables[slot].as_ref().map(|held| held.id) else { return Ok(false) };
        let batch = self.batch(id, seed, len);
        let Some(held) = &mut self.tables[slot] else { return Ok(false) };
        held.version = version;
        held.table.write_batch(&updates(&batch))?;
        self.apply(id, batch);
        Ok(true)
    }

    fn update_one(&mut self, slot: Slot, seed: u64) -> Result<bool> {
        let version = self.new_version();
        let Some(id) = self.tables[slot].as_ref().map(|held| held.id) else { return Ok(false) };
        let batch = self.batch(id, seed, 1);
        let Some(held) = &mut self.tables[slot] else { return Ok(false) };
        held.version = version;
        let (key, change) = &batch[0];

        match change {
            Change::Insert(value) => held.table.insert(key, value)?,
            Change::InsertWithBlob(value, blob) => held.table.insert_with_blob(key, value, blob)?,
            Change::Delete => held.table.delete(key)?,
            Change::Upsert(value) => held.table.upsert(key, value)?,
        }

        self.apply(id, batch);
        Ok(true)
    }

    fn delete_range(&mut self, slot: Slot, seed: u64) -> Result<bool> {
        let version = self.new_version();
        let prefix = self.swarm.prefix(seed);
        let bounds = self.swarm.bounds(seed);
        let Some(held) = &mut self.tables[slot] else { return Ok(false) };
        let id = held.id;
        held.version = version;

        let deleted = if seed.is_multiple_of(3) {
            held.table.delete_prefix(&prefix)?;
            self.forest.prefix(id, &prefix).unwrap()
        } else {
            held.table.delete_range::<Vec<u8>, _>(bounds.clone())?;
            let (from, to) = &bounds;
            let [from, to] = [from, to].map(|bound| bound.as_ref().map(Vec::as_slice));
            self.forest.range(id, from, to).unwrap()
        };

        // Never forgotten: histories that fail are cut down to updates.
        for (key, _) in deleted {
            self.forest.update(id, &key, Change::Delete).unwrap();
        }
        Ok(true)
    }

    fn update_with_long_key(&mut self, slot: Slot, seed: u64, len: usize) -> Result<bool> {
        let Some(id) = self.tables[slot].as_ref().map(|held| held.id) else { return Ok(false) };
        let batch = self.batch(id, seed, len);
        let Some(held) = &mut self.tables[slot] else { return Ok(false) };
        let key = vec![7; KEY_BYTES_MAX + 1];
        let mut updates = updates(&batch);
        updates.insert(seed as usize % (len + 1), (&key, Update::Delete));
        match held.table.write_batch(&updates) {
            Err(Error::KeyTooLarge { bytes, limit }) if bytes == limit + 1 => Ok(true),
            Err(error) if is_of_disk(&error) => Err(error),
            other => panic!("a key of {} bytes gave {other:?}", key.len()),
        }
    }

    fn stats(&mut self, slot: Slot) -> Result<bool> {
        let Some(held) = &self.tables[slot] else { return Ok(false) };
        let stats = held.table.stats();
        let live = self.forest.content(held.id).unwrap().len() as u64;
        assert!(stats.entries() >= live, "{stats:?} of {live} live entries");
        for level in &stats.levels {
            assert!(level.deletes <= level.entries && level.merge_pages_done <= level.merge_pages);
        }
        assert!(stats.found <= stats.lookups && stats.memory_hits <= stats.lookups);
        assert_eq!(held.table.count_exact()?, live);
        Ok(true)
    }

    /// Equal contents give equal bytes and one digest, others give others.
    fn export_canonical(&mut self, slot: Slot) -> Result<bool> {
        let Some(held) = &self.tables[slot] else { return Ok(false) };
        let content = self.forest.content(held.id).unwrap();
        let mut bytes = Vec::new();
        let summary = held.table.export_canonical(&mut bytes)?;
        assert_eq!((summary.count, summary.bytes), (content.len() as u64, bytes.len() as u64));
        let entries = canonical_entries(content);
        assert!(bytes[12..].starts_with(&entries), "canonical entries differ");
        if let Some((last_entries, last_digest)) = &self.last_digest {
            assert_eq!(*last_digest == summary.digest, *last_entries == entries);
        }
        self.last_digest = Some((entries, summary.digest));
        Ok(true)
    }

    fn import_canonical(&mut self, slot: Slot, to: Slot, config: usize) -> Result<bool> {
        let (config, resolve) = self.swarm.configs[config % self.swarm.configs.len()].clone();
        let Some(held) = &self.tables[slot] else { return Ok(false) };
        let mut bytes = Vec::new();
        let exported = held.table.export_canonical(&mut bytes)?;
        let (table, imported) = self.session().import_canonical(bytes.as_slice(), &config)?;
        assert_eq!(imported, exported);
        let id = self.forest.copy_content(held.id, resolve).unwrap();
        let version = self.new_version();
        self.put_table(to, table, id, version);
        Ok(true)
    }

    #[expect(clippy::unnecessary_wraps, reason = "each action has this form")]
    fn reconfigure(&mut self, slot: Slot, config: usize) -> Result<bool> {
        let version = self.new_version();
        let (config, _) = self.swarm.configs[config % self.swarm.configs.len()].clone();
        let Some(held) = &mut self.tables[slot] else { return Ok(false) };
        held.version = version;

        let before = held.table.config().clone();
        // The merge operator stays as it is.
        let refused = if config.merge_operator == before.merge_operator {
            "memory_budget"
        } else {
            "merge_operator"
        };
        match held.table.set_config(&config) {
            Ok(()) => {
                assert_eq!(
                    (held.table.config(), &before.merge_operator),
                    (&config, &config.merge_operator)
                );
            }
            Err(Error::InvalidConfig { option, .. }) => {
                assert_eq!((option, held.table.config()), (refused, &before));
            }
            Err(error) => panic!("{error:?}"),
        }

        Ok(true)
    }

    fn union(&mut self, tables: &[Slot], to: Slot, is_immediate: bool) -> Result<bool> {
        let held: Option<Vec<&HeldTable>> =
            tables.iter().map(|&slot| self.tables[slot].as_ref()).collect();
        let Some(held) = held else { return Ok(false) };

        let bytes = |held: &&HeldTable| {
            let content = self.forest.content(held.id).unwrap();
            content.values().map(|stored| stored.value.len()).sum::<usize>()
        };

        // Tables united with themselves again and again would grow for ever.
        if held.iter().map(bytes).sum::<usize>() > 2 * TABLE_BYTES_MAX {
            return Ok(false);
        }
        let inputs: Vec<&Table> = held.iter().map(|held| &held.table).collect();
        let ids: Vec<TableId> = held.iter().map(|held| held.id).collect();
        let config = held.last().map(|held| held.table.config().clone());

        let got = if is_immediate {
            self.session().union(&inputs)
        } else {
            self.session().incremental_union(&inputs)
        };

        match &got {
            Err(Error::UnionOfNothing) if tables.is_empty() => return Ok(true),
            Err(Error::UnionTooDeep { .. }) if self.unions >= 32 => return Ok(true),
            // A sync that failed before is told by whatever call comes next.
            Err(error) if is_of_disk(error) => {}
            _ => assert!(!tables.is_empty(), "a union of nothing gave {got:?}"),
        }

        let Some((table, id)) = agree(got, || self.forest.union(&ids))? else { return Ok(true) };
        assert_eq!(Some(table.config()), config.as_ref());
        assert!(!is_immediate || tables.len() == 1 || table.remaining_union_debt() == 0);
        self.unions += 1;

        let version = match tables {
            // The union of one table is its duplicate.
            [slot] => self.tables[*slot].as_ref().unwrap().version,
            _ => self.new_version(),
        };

        self.put_table(to, table, id, version);
        Ok(true)
    }

    fn supply_credits(&mut self, slot: Slot, credits: u64) -> Result<bool> {
        let version = self.new_version();
        let Some(held) = &mut self.tables[slot] else { return Ok(false) };
        let before = held.table.remaining_union_debt();
        assert!(before <= held.debt, "the debt rose from {} to {before}", held.debt);
        held.version = version;

        let unused = held.table.supply_union_credits(credits)?;
        let after = held.table.remaining_union_debt();
        let relations = [
            unused <= credits,
            before > 0 || (unused == credits && after == 0),
            unused == 0 || after == 0,
            after == 0 || after <= before.saturating_sub(credits),
        ];

        assert_eq!(
            relations, [true; 4],
            "debt {before}, paid {credits}: left {unused}, debt {after}"
        );

        held.debt = after;
        Ok(true)
    }

    fn compact(&mut self, slot: Slot) -> Result<bool> {
        let version = self.new_version();
        let Some(held) = &mut self.tables[slot] else { return Ok(false) };
        held.version = version;

        let mut last = (0, 0);
        held.table.compact(&mut |done, total| {
            assert!(last.0 <= done && done <= total, "{done} of {total} after {last:?}");
            last = (done, total);
        })?;

        assert_eq!(last.0, last.1);
        let stats = held.table.stats();
        let keys = self.forest.content(held.id).unwrap().len() as u64;
        let deletes: u64 = stats.levels.iter().map(|level| level.deletes).sum();
        let shape = (stats.runs(), stats.entries(), deletes, stats.merge_debt_pages);
        assert_eq!(shape, (keys.min(1), keys, 0, 0), "{stats:?}");
        held.debt = held.table.remaining_union_debt();
        assert_eq!(held.debt, 0);
        Ok(true)
    }

    /// Reads table `reader`, or a fork of `writer`, in one thread while this thread updates
    /// `writer`.
    fn side_by_side(&mut self, reader: Slot, writer: Slot, seed: u64, len: usize) -> Result<bool> {
        let version = self.new_version();
        let Some(mut held) = self.tables[writer].take() else { return Ok(false) };
        held.version = version;
        let result = self.read_beside(reader, &mut held, seed, len);
        self.tables[writer] = Some(held);
        result
    }

    fn read_beside(
        &mut self,
        at: Slot,
        writer: &mut HeldTable,
        seed: u64,
        len: usize,
    ) -> Result<bool> {
        let duplicate = writer.table.fork()?;
        let (reader, content) = match &self.tables[at] {
            Some(held) => (&held.table, self.forest.content(held.id).unwrap()),
            None => (&duplicate, self.forest.content(writer.id).unwrap()),
        };

        let keys = self.swarm.any_keys(seed, len);
        let parts = (0..4).map(|part| self.batch(writer.id, seed + part, len / 4 + 1));

        let batches: Vec<_> = parts.collect();
        let mut done = 0;
        let (read, written) = thread::scope(|scope| {
            let reading = scope.spawn(|| read_all(reader, &keys));
            let written = batches.iter().try_for_each(|batch| {
                writer.table.write_batch(&updates(batch))?;
                done += 1;
                Ok(())
            });
            (reading.join().unwrap_or_else(|panic| panic::resume_unwind(panic)), written)
        });

        let compared = read.map(|(lookups, records)| {
            match_lookups(&lookups, &keys, content);
            match_records(&records, content.iter());
        });

        batches.into_iter().take(done).for_each(|batch| self.apply(writer.id, batch));
        written.and(compared).map(|()| true)
    }
}

/// Snapshots.
impl World {
    /// Does to the model what an action does to the snapshots; `None` if that is nothing.
    pub(super) fn change_snapshots(
        &self,
        forest: &mut Forest,
        action: &Action,
    ) -> Option<std::result::Result<(), Refused>> {
        Some(match action {
            Action::Save { table, name, label: of } => {
                let held = self.tables[*table].as_ref()?;
                forest.save_snapshot(held.id, SNAPSHOTS[*name], label(*of))
            }
            Action::DeleteSnapshot { name } => forest.delete_snapshot(SNAPSHOTS[*name]),
            Action::RenameSnapshot { from, to } => {
                forest.rename_snapshot(SNAPSHOTS[*from], SNAPSHOTS[*to])
            }
            Action::Export { name, dir } => {
                forest.export_snapshot(SNAPSHOTS[*name], &self.export_name(*dir))
            }
            Action::Import { dir, from, to } => {
                forest.import_snapshot(&self.export_name(*dir), SNAPSHOTS[*from], SNAPSHOTS[*to])
            }
            _ => return None,
        })
    }

    /// Changes the snapshots of the engine and of the model in the same way.
    fn do_change_snapshots(&mut self, action: &Action) -> Result<bool> {
        let mut forest = self.forest.clone();

        let Some(expected) = self.change_snapshots(&mut forest, action) else { return Ok(false) };
        let session = self.session();
        let got = match action {
            Action::Save { table, name: to, label: of } => {
                let Some(held) = &self.tables[*table] else { return Ok(false) };
                held.table.save_snapshot(&name(SNAPSHOTS[*to]), label(*of))
            }
            Action::DeleteSnapshot { name: of } => session.delete_snapshot(&name(SNAPSHOTS[*of])),
            Action::RenameSnapshot { from, to } => {
                session.rename_snapshot(&name(SNAPSHOTS[*from]), &name(SNAPSHOTS[*to]))
            }
            Action::Export { name: of, dir } => {
                self.prepare_export(SNAPSHOTS[*of], *dir)?;
                session.export_snapshot(&name(SNAPSHOTS[*of]), self.export_dir(*dir)).map(|_| ())
            }
            Action::Import { dir, from, to } => {
                let from = name(SNAPSHOTS[*from]);
                let to = name(SNAPSHOTS[*to]);
                session.import_snapshot(self.export_dir(*dir), &from, &to).map(|_| ())
            }
            other => unreachable!("{other:?} changes no snapshot"),
        };

        agree(got, || expected)?;
        self.forest = forest;
        self.compare_names();
        Ok(true)
    }

    fn open_snapshot(&mut self, at: Slot, of: Slot, to: Slot, seed: u64) -> Result<bool> {
        let text = SNAPSHOTS[at];
        let label = label(of);

        let stored = self.forest.snapshot_resolve(text).unwrap_or(MergeOperator::Newest);
        let mut options = self.swarm.open_options(seed);
        if !seed.is_multiple_of(4) {
            options = options.merge_operator(engine_resolve(stored));
        }

        let mut got = self.session().open_snapshot_with(&name(text), label, &options);
        if let Err(Error::MergeOperatorMismatch { name, stored: asked, given: None }) = &got {
            assert_eq!(
                (name.as_str(), stored, &options.merge_operator),
                (text, MergeOperator::Xor, &None)
            );
            assert_eq!(asked, stored.name());
            return Ok(true);
        }

        // A table may outgrow any budget. The refusal says what is enough.
        if let (Err(Error::InvalidConfig { option, allowed, .. }), Some(budget)) =
            (&got, options.memory_budget)
        {
            assert_eq!(*option, "memory_budget");
            let least = allowed.split(' ').next().unwrap().parse().unwrap();
            assert!(least > budget, "{budget} bytes are refused, {least} are not");
            options = options.memory_budget(least);
            got = self.session().open_snapshot_with(&name(text), label, &options);
        }

        if let Some((table, id)) = agree(got, || self.forest.open_snapshot(text, label))? {
            let config = table.config();
            assert_eq!(config.merge_operator, engine_resolve(stored));
            assert_eq!(config.disk_cache, options.disk_cache.unwrap_or(config.disk_cache));
            assert_eq!(config.queue_depth, options.queue_depth.unwrap_or(config.queue_depth));
            let version = self.new_version();
            self.put_table(to, table, id, version);
        }

        Ok(true)
    }

    fn snapshot_info(&mut self, at: Slot) -> Result<bool> {
        let text = SNAPSHOTS[at];
        let got = self.session().snapshot_info(&name(text));
        let expected =
            || Ok((self.forest.snapshot_label(text)?, self.forest.snapshot_resolve(text)?));
        if let Some((info, (label, resolve))) = agree(got, expected)? {
            assert_eq!((info.name.as_str(), info.label.as_str()), (text, label));
            assert_eq!(info.resolve, resolve.name());
        }
        Ok(true)
    }

    /// Opens a snapshot with what it needs.
    #[expect(clippy::unused_self, reason = "each action has this form")]
    pub(super) fn open_snapshot_as_saved(&self, session: &Session, text: &str) -> Result<Table> {
        let info = session.snapshot_info(&name(text))?;
        let resolve = MergeOperator::ALL.into_iter().find(|resolve| resolve.name() == info.resolve);
        let options = OpenOptions::default().merge_operator(engine_resolve(resolve.unwrap()));
        session.open_snapshot_with(&name(text), &info.label, &options)
    }
}

/// Exports: each directory is a session of its own.
impl World {
    /// The name of a directory, a new one after each failure: what could not be synced there may go
    /// with the power at any time.
    fn export_name(&self, dir: Slot) -> String {
        format!("export-{dir}-{}", self.export_failures[dir])
    }

    fn export_dir(&self, dir: Slot) -> PathBuf {
        self.place.dir().with_file_name(self.export_name(dir))
    }

    /// Makes a session with another salt, where one is wanted.
    fn prepare_export(&self, snapshot: &str, dir: Slot) -> Result<()> {
        let path = self.export_dir(dir);
        let is_wanted = dir == 1 && self.forest.snapshot_label(snapshot).is_ok();
        if is_wanted && self.place.disk().kind(&path)?.is_none() {
            let options = SessionOptions::with_salt(0xD1FF).create_dir();
            Session::open(self.place.disk(), &path, &options)?.close()?;
        }
        Ok(())
    }

    /// An export was interrupted: the snapshot is there, and whole, or it is not.
    pub(super) fn settle_export(&mut self, action: &Action) {
        let Action::Export { dir, .. } = action else { return };

        let mut legal = vec![self.forest.clone()];
        let mut after = self.forest.clone();
        if let Some(Ok(())) = self.change_snapshots(&mut after, action) {
            legal.push(after);
        }

        let exported = self.export_name(*dir);
        let options = SessionOptions::default();
        match Session::open(self.place.disk(), &self.export_dir(*dir), &options) {
            // An unfinished creation.
            Err(Error::SessionDirDoesNotExist { .. } | Error::SessionDirCorrupted { .. }) => {
                assert!(self.forest.exported(&exported).is_empty());
            }
            Err(error) => panic!("an exported session does not open: {error:?}"),
            Ok(session) => {
                let names = session.list_snapshots().unwrap();
                let names: Vec<&str> = names.iter().map(SnapshotName::as_str).collect();
                let names_of = |forest: &Forest| -> Vec<String> {
                    forest.exported(&exported).iter().map(|(name, _)| (*name).to_owned()).collect()
                };
                let found = legal.into_iter().find(|forest| names_of(forest) == names);
                let found = found.unwrap_or_else(|| panic!("{names:?} are not as exported"));
                for (text, content) in found.exported(&exported) {
                    let table = self.open_snapshot_as_saved(&session, text).unwrap();
                    check_table(&session, &table, content, self.swarm.keys.all()).unwrap();
                }
                session.close().unwrap();
            }
        }

        self.forest.forget_exports(&exported);
        self.export_failures[*dir] += 1;
    }
}
