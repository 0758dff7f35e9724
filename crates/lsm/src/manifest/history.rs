//! History of a store that its WAL does not have: tables that were made, renamed, dropped or
//! loaded, and versions that the store was rolled back to. The manifest that makes such a change
//! holds its entry, so that both are there or neither.
//!
//! Only a store that has a feed directory keeps a history: without readers of it, manifests stay as
//! short as they were.
//!
//! A table that was installed keeps its files as long as a feed may still tell its entries: a
//! *load*. The files stay on disk like those of the tables, whatever becomes of the table itself.
//!
//! Invariants:
//! - Entries stand in the order of the manifests that made them, and their commits never fall.
//! - Each entry has the sequence number of its manifest, which is a number of its own.

use terrane_io::bytes::{Reader, Writer};

use crate::manifest::named_meta::{ListForm, NamedMeta, put_tables, take_name, take_tables};
use crate::manifest::snapshot_meta::{self, Refused, SnapshotMeta};

/// Newest entries that a checkpoint keeps even if no cursor needs them: for feeds without a name in
/// other processes.
const KEPT: usize = 64;

/// Most entries that are kept. Feeds that need older ones have a gap.
pub(crate) const HISTORY_MAX: usize = 1024;

/// Most loads, so that the manifest stays short. Of older ones feeds tell only the name.
pub(crate) const LOADS_MAX: usize = 16;

/// A change that the WAL has no record of.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HistoryEntry {
    /// The sequence number of the manifest that made the change.
    pub(crate) sequence: u64,
    /// The commit that the change is, or for a change without a number the commit before it.
    pub(crate) commit: u64,
    pub(crate) event: HistoryEvent,
}

/// Kind of a change; tables are named without the files that they have, but for loads.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum HistoryEvent {
    /// An empty table was made.
    Created(NamedMeta),
    /// A table was installed under a new name: no record has its entries.
    Installed {
        table: NamedMeta,
        /// Whether it is a load: the table has its files as it was installed.
        is_load: bool,
    },
    Dropped(NamedMeta),
    Renamed {
        id: u64,
        from: String,
        to: String,
    },
    /// A commit: all tables became what they were in version `to`.
    RolledBack {
        to: u64,
        /// The segment that goes on behind the commit; 0 without a WAL.
        segment: u64,
        /// Tables that went, and tables that came back; a renamed one is in both.
        gone: Vec<NamedMeta>,
        back: Vec<NamedMeta>,
    },
    /// A commit: a table was installed, perhaps in the place of another one, perhaps with a batch.
    Loaded {
        segment: u64,
        table: NamedMeta,
        /// Whether the name is new.
        is_new: bool,
        /// Whether it is a load, and nothing else was changed by the commit.
        is_load: bool,
    },
}

impl HistoryEvent {
    /// The segment that goes on behind the change, if that is a commit.
    pub(crate) fn segment(&self) -> Option<u64> {
        match self {
            Self::RolledBack { segment, .. } | Self::Loaded { segment, .. } => Some(*segment),
            _ => None,
        }
    }

    /// A table that was installed, with its files, if it is a load.
    pub(crate) fn load(&self) -> Option<&NamedMeta> {
        match self {
            Self::Installed { table, is_load: true }
            | Self::Loaded { table, is_load: true, .. } => Some(table),
            _ => None,
        }
    }

    /// Lets go of the files of a load.
    pub(crate) fn let_go(&mut self) {
        if let Self::Installed { table, is_load } | Self::Loaded { table, is_load, .. } = self {
            *table = bare(table);
            *is_load = false;
        }
    }

    /// Makes a list of tables, by number, what it was before the change.
    pub(crate) fn undo(&self, tables: &mut std::collections::BTreeMap<u64, NamedMeta>) {
        match self {
            Self::Created(table)
            | Self::Installed { table, .. }
            | Self::Loaded { table, is_new: true, .. } => {
                tables.remove(&table.id);
            }
            Self::Dropped(table) => {
                tables.insert(table.id, table.clone());
            }
            Self::Renamed { id, from, .. } => {
                if let Some(table) = tables.get_mut(id) {
                    table.name.clone_from(from);
                }
            }
            Self::RolledBack { gone, back, .. } => {
                for table in back {
                    tables.remove(&table.id);
                }
                tables.extend(gone.iter().map(|table| (table.id, table.clone())));
            }
            Self::Loaded { is_new: false, .. } => {}
        }
    }

    /// Makes a list of tables, by number, what it is after the change.
    pub(crate) fn redo(&self, tables: &mut std::collections::BTreeMap<u64, NamedMeta>) {
        match self {
            Self::Created(table) | Self::Installed { table, .. } | Self::Loaded { table, .. } => {
                tables.insert(table.id, table.clone());
            }
            Self::Dropped(table) => {
                tables.remove(&table.id);
            }
            Self::Renamed { id, to, .. } => {
                if let Some(table) = tables.get_mut(id) {
                    table.name.clone_from(to);
                }
            }
            Self::RolledBack { gone, back, .. } => {
                for table in gone {
                    tables.remove(&table.id);
                }
                tables.extend(back.iter().map(|table| (table.id, table.clone())));
            }
        }
    }
}

/// A table without the files that it has.
pub(crate) fn bare(table: &NamedMeta) -> NamedMeta {
    let SnapshotMeta { created_ns, resolve, config, .. } = table.meta.clone();
    let meta = SnapshotMeta { created_ns, resolve, config, ..SnapshotMeta::default() };
    NamedMeta { id: table.id, name: table.name.clone(), derived: table.derived, meta }
}

/// A table with its files, as far as they are whole.
pub(crate) fn whole(table: &NamedMeta) -> NamedMeta {
    NamedMeta { meta: table.meta.clone().without_progress(), ..table.clone() }
}

/// Tables of one list that another one does not have under the same name.
pub(crate) fn only_in(one: &[NamedMeta], other: &[NamedMeta]) -> Vec<NamedMeta> {
    let is_there = |table: &&NamedMeta| {
        other.iter().any(|there| (there.id, &there.name) == (table.id, &table.name))
    };
    one.iter().filter(|table| !is_there(table)).map(bare).collect()
}

/// Lets go of entries that no feed needs: of commits below `floor`, but for the newest, and of what
/// is too much. Loads below `floor` lose their files.
pub(crate) fn prune(history: &mut Vec<HistoryEntry>, floor: u64) {
    let wanted = history.iter().filter(|entry| entry.commit >= floor).count();
    let kept = wanted.clamp(KEPT, HISTORY_MAX).min(history.len());
    history.drain(..history.len() - kept);
    let passed = history.iter_mut().take_while(|entry| entry.commit < floor);
    passed.for_each(|entry| entry.event.let_go());
}

/// Lets go of what is too much.
pub(crate) fn limit(history: &mut Vec<HistoryEntry>) {
    let surplus = history.len().saturating_sub(HISTORY_MAX);
    history.drain(..surplus);
    let loads = history.iter_mut().rev().filter(|entry| entry.event.load().is_some());
    loads.skip(LOADS_MAX).for_each(|entry| entry.event.let_go());
}

pub(crate) fn put_history(out: &mut Writer, history: &[HistoryEntry], form: ListForm) {
    debug_assert!(
        history.is_sorted_by(|one, next| {
            one.sequence < next.sequence && one.commit <= next.commit
        }),
        "a manifest with a history out of order is refused"
    );
    out.u32(history.len() as u32);
    for HistoryEntry { sequence, commit, event } in history {
        out.u64(*sequence).u64(*commit);
        match event {
            HistoryEvent::Created(table) => put_table(out.u8(1), table, form),
            HistoryEvent::Installed { table, is_load } => {
                put_table(out.u8(if *is_load { 7 } else { 2 }), table, form);
            }
            HistoryEvent::Dropped(table) => put_table(out.u8(3), table, form),
            HistoryEvent::Renamed { id, from, to } => {
                out.u8(4).u64(*id).string(from.as_bytes()).string(to.as_bytes());
            }
            HistoryEvent::RolledBack { to, segment, gone, back } => {
                out.u8(5).u64(*to).u64(*segment);
                put_tables(out, gone, form);
                put_tables(out, back, form);
            }
            HistoryEvent::Loaded { segment, table, is_new, is_load } => {
                let tag = if *is_load { 8 } else { 6 };
                out.u8(tag).u64(*segment).u8(u8::from(*is_new));
                put_table(out, table, form);
            }
        }
    }
}

fn put_table(out: &mut Writer, table: &NamedMeta, form: ListForm) {
    put_tables(out, std::slice::from_ref(table), form);
}

fn take_table(
    input: &mut Reader<'_>,
    (next_table, form): (u64, ListForm),
) -> Result<NamedMeta, Refused> {
    let mut tables = take_tables(input, next_table, form)?;
    match (tables.pop(), tables.is_empty()) {
        (Some(table), true) => Ok(table),
        _ => snapshot_meta::damaged("a change of other than one table"),
    }
}

/// Reads what [`put_history`] wrote, in a manifest of this sequence number and commit at most,
/// with this next number of a table and lists of this form.
pub(crate) fn take_history(
    input: &mut Reader<'_>,
    (sequence, commit_max): (u64, u64),
    list: (u64, ListForm),
) -> Result<Vec<HistoryEntry>, Refused> {
    let (next_table, form) = list;
    let mut history: Vec<HistoryEntry> = Vec::new();
    for _ in 0..input.u32()? {
        let entry_sequence = input.u64()?;
        let commit = input.u64()?;
        let event = match input.u8()? {
            1 => HistoryEvent::Created(take_table(input, list)?),
            tag @ (2 | 7) => {
                let table = take_table(input, list)?;
                HistoryEvent::Installed { table, is_load: tag == 7 }
            }
            3 => HistoryEvent::Dropped(take_table(input, list)?),
            4 => HistoryEvent::Renamed {
                id: input.u64()?,
                from: take_name(input)?,
                to: take_name(input)?,
            },
            5 => HistoryEvent::RolledBack {
                to: input.u64()?,
                segment: input.u64()?,
                gone: take_tables(input, next_table, form)?,
                back: take_tables(input, next_table, form)?,
            },
            tag @ (6 | 8) => {
                let segment = input.u64()?;
                let is_new = match input.u8()? {
                    0 => false,
                    1 => true,
                    _ => return snapshot_meta::damaged("unknown kind of a loaded table"),
                };
                let table = take_table(input, list)?;
                HistoryEvent::Loaded { segment, table, is_new, is_load: tag == 8 }
            }
            _ => return snapshot_meta::damaged("unknown change of the store"),
        };

        let is_in_order = history
            .last()
            .is_none_or(|last| last.sequence < entry_sequence && last.commit <= commit);
        if !is_in_order || entry_sequence == 0 || entry_sequence > sequence || commit > commit_max {
            return snapshot_meta::damaged("changes of the store out of order");
        }
        history.push(HistoryEntry { sequence: entry_sequence, commit, event });
    }
    Ok(history)
}
