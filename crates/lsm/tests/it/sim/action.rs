//! Actions of a history as data, one line of text each.
//!
//! An action names tables, cursors, kept references, snapshots and exports by slots, so that it
//! is valid, or has no effect, after any other actions: the minimiser can cut histories and run the
//! rest. Keys, values and bounds within an action follow from its `seed`.

use serde::{Deserialize, Serialize};
use terrane_io::FaultKind;
use terrane_io::Survival;

/// Index of a slot for a handle or a name.
pub(crate) type Slot = usize;

pub(crate) const TABLES: usize = 6;
pub(crate) const CURSORS: usize = 3;
/// Places for references to blobs that are kept.
pub(crate) const KEPT: usize = 3;
pub(crate) const SNAPSHOTS: [&str; 4] = ["a", "b", "c", "d-4_x"];
pub(crate) const LABELS: [&str; 2] = ["ledger", "stake"];
/// Directories to export to: in the first all hash with the session's salt, in the second with
/// another.
pub(crate) const EXPORTS: usize = 2;

/// Something that is done to the engine and to the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Action {
    NewTable {
        to: Slot,
        config: usize,
    },
    Duplicate {
        from: Slot,
        to: Slot,
    },
    DropTable {
        table: Slot,
    },
    /// A batch in one call.
    Update {
        table: Slot,
        seed: u64,
        len: usize,
    },
    /// A single change, by the method for its kind.
    UpdateOne {
        table: Slot,
        seed: u64,
    },
    /// A batch that is refused as a whole for one of its keys.
    UpdateWithLongKey {
        table: Slot,
        seed: u64,
        len: usize,
    },
    /// All keys of a range, or of a prefix, in one call.
    DeleteRange {
        table: Slot,
        seed: u64,
    },
    Lookup {
        table: Slot,
        seed: u64,
        len: usize,
    },
    Member {
        table: Slot,
        seed: u64,
    },
    /// A cursor over a range, read from end to end.
    Range {
        table: Slot,
        seed: u64,
    },
    /// A cursor over a range, read from its end to its start.
    RangeBack {
        table: Slot,
        seed: u64,
    },
    Prefix {
        table: Slot,
        seed: u64,
    },
    /// The diff of any two tables.
    Diff {
        older: Slot,
        newer: Slot,
    },
    NewCursor {
        table: Slot,
        to: Slot,
        seed: u64,
    },
    NewPrefixCursor {
        table: Slot,
        to: Slot,
        seed: u64,
    },
    Next {
        cursor: Slot,
        count: usize,
    },
    Prev {
        cursor: Slot,
        count: usize,
    },
    Peek {
        cursor: Slot,
    },
    PeekPrev {
        cursor: Slot,
    },
    Seek {
        cursor: Slot,
        seed: u64,
    },
    SeekAfter {
        cursor: Slot,
        seed: u64,
    },
    SeekToStart {
        cursor: Slot,
    },
    SeekToEnd {
        cursor: Slot,
    },
    Take {
        cursor: Slot,
        count: usize,
    },
    TakeBack {
        cursor: Slot,
        count: usize,
    },
    TakeWhile {
        cursor: Slot,
        count: usize,
        seed: u64,
    },
    TakeWhileBack {
        cursor: Slot,
        count: usize,
        seed: u64,
    },
    DropCursor {
        cursor: Slot,
    },
    /// A lookup whose references to blobs are kept for later.
    KeepBlobs {
        table: Slot,
        to: Slot,
        seed: u64,
        len: usize,
    },
    /// The same with the next entries of a cursor.
    KeepCursorBlobs {
        cursor: Slot,
        to: Slot,
        count: usize,
    },
    RetrieveBlobs {
        kept: Slot,
    },
    Union {
        tables: Vec<Slot>,
        to: Slot,
    },
    IncrementalUnion {
        tables: Vec<Slot>,
        to: Slot,
    },
    SupplyCredits {
        table: Slot,
        credits: u64,
    },
    QueryDebt {
        table: Slot,
    },
    /// All of a table to one run.
    Compact {
        table: Slot,
    },
    Save {
        table: Slot,
        name: Slot,
        label: Slot,
    },
    /// Opens a snapshot with options that follow from the seed.
    Open {
        name: Slot,
        label: Slot,
        to: Slot,
        seed: u64,
    },
    DeleteSnapshot {
        name: Slot,
    },
    RenameSnapshot {
        from: Slot,
        to: Slot,
    },
    SnapshotInfo {
        name: Slot,
    },
    Export {
        name: Slot,
        dir: Slot,
    },
    Import {
        dir: Slot,
        from: Slot,
        to: Slot,
    },
    ListSnapshots,
    /// Shape, counters, and the exact number of keys.
    Stats {
        table: Slot,
    },
    /// The canonical bytes of a table.
    ExportCanonical {
        table: Slot,
    },
    /// A new table of another configuration from the canonical bytes of a table.
    ImportCanonical {
        table: Slot,
        to: Slot,
        config: usize,
    },
    Reconfigure {
        table: Slot,
        config: usize,
    },
    /// A second thread reads one table while this one updates another; if the slots are the same,
    /// it reads a duplicate.
    SideBySide {
        reader: Slot,
        writer: Slot,
        seed: u64,
        len: usize,
    },
    CloseAndReopen,
    /// Close, check all files, reopen.
    Verify,
    /// The process dies; a new one opens the session.
    Kill,
    /// The power goes; what was not synced survives as drawn.
    PowerCut {
        #[serde(with = "SurvivalDef")]
        survival: Survival,
    },
}

impl Action {
    /// The name of the kind of action.
    pub(crate) fn name(&self) -> String {
        let text = format!("{self:?}");
        text.chars().take_while(char::is_ascii_alphanumeric).collect()
    }
}

/// Fault or crash during an action, on a simulated disk. Calls count from the beginning of the
/// action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mishap {
    /// The first call from `call` on that the kind applies to fails, or it and all later ones. If
    /// `retry`, the action is done again afterwards.
    Fault {
        #[serde(with = "FaultKindDef")]
        kind: FaultKind,
        call: u64,
        forever: bool,
        retry: bool,
    },
    /// The power goes at this call.
    PowerCut {
        call: u64,
        #[serde(with = "SurvivalDef")]
        survival: Survival,
    },
}

/// An action, and what is to go wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    #[serde(rename = "do")]
    pub(crate) action: Action,
    #[serde(rename = "with", skip_serializing_if = "Option::is_none", default)]
    pub(crate) mishap: Option<Mishap>,
}

impl Step {
    /// Steps to try instead of this one when a history is minimised.
    pub(crate) fn simpler(&self) -> Vec<Self> {
        let mut steps = Vec::new();
        if self.mishap.is_some() {
            steps.push(Self { mishap: None, ..self.clone() });
        }

        let mut push = |action| steps.push(Self { action, ..self.clone() });
        match &self.action {
            Action::Update { table, seed, len } if *len > 1 => {
                for len in [1, len / 2, len - 1] {
                    push(Action::Update { table: *table, seed: *seed, len });
                }
            }
            Action::Lookup { table, seed, len } if *len > 1 => {
                for len in [1, len / 2] {
                    push(Action::Lookup { table: *table, seed: *seed, len });
                }
            }
            Action::SideBySide { writer, seed, len, .. } => {
                push(Action::Update { table: *writer, seed: *seed, len: *len });
            }
            Action::Union { tables, to } => {
                push(Action::IncrementalUnion { tables: tables.clone(), to: *to });
            }
            Action::PowerCut { .. } => push(Action::Kill),
            Action::Kill => push(Action::CloseAndReopen),
            _ => {}
        }

        steps
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "FaultKind")]
enum FaultKindDef {
    Eio,
    Enospc,
    Eintr,
    Eagain,
    ShortRead,
    ShortWrite,
    TornWrite,
    FailedSync,
    LyingSync,
    BitRot,
    ZeroedSector,
    Misdirected,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Survival")]
enum SurvivalDef {
    Nothing,
    Everything,
    Prefix(u64),
    Random(u64),
    Torn(u64),
}
