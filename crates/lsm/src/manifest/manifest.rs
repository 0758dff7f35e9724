//! The manifest of a store: its named tables, the files that they need, and where the log goes on
//! from there.
//!
//! There are two copies, each whole when it gets its name. So a copy that is damaged later costs
//! nothing: it is written again when the store is opened. A store that never had a named table has
//! none.
//!
//! Nothing is committed before a manifest is durable, and none is ever removed. So where both
//! copies are missing and the log has been written to, or has had more than one segment, they were
//! lost. (A store without a log cannot be told from a session that has no named tables then.)
//!
//! **Edits.** Retaining and releasing a version do not write the manifest anew: they append a few
//! bytes, an *edit*, to both copies, one after the other. So their cost does not grow with the
//! number of versions. A copy is written anew, without edits, by everything else, and when its
//! edits are longer than the rest.
//!
//! Invariant: what a manifest names is durable before the manifest is written, and stays until both
//! copies name it no more.

#![doc = include_str!("../../../../docs/format/store.md")]

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::bytes::{Reader, Writer};
use terrane_io::checksum::crc32c;
use terrane_io::files::read_file;
use terrane_io::{Access, Disk, OpenMode};

use crate::error::{Error, Result, unreadable};
use crate::manifest::history::{self, HistoryEntry, HistoryEvent, put_history, take_history};
pub(crate) use crate::manifest::named_meta::{Derived, NamedMeta};
use crate::manifest::named_meta::{ListForm, check_indexes, put_tables, take_name, take_tables};
use crate::manifest::snapshot_meta::{self, MANIFEST_BYTES_MAX, Refused, SnapshotMeta};
use crate::manifest::wal;
use crate::trace::event;

/// First bytes of a manifest.
pub(crate) const STORE_MAGIC: [u8; 8] = *b"TerraMan";

/// Version of manifests without a history, which older programs read, too.
pub(crate) const STORE_VERSION: u32 = 2;

/// Version of manifests with a history.
pub(crate) const STORE_VERSION_HISTORY: u32 = 3;

/// Version of manifests with indexes, and a history, which may be empty: older programs would write
/// to a table and leave its indexes as they are, so they must refuse the store.
pub(crate) const STORE_VERSION_INDEXES: u32 = 4;

/// Version of manifests whose history has loads: older programs would take their files for refuse.
pub(crate) const STORE_VERSION_LOADS: u32 = 5;

/// Where the length of a manifest without its edits stands.
const LENGTH_OFFSET: usize = 12;

/// Where its sequence number stands.
const SEQUENCE_OFFSET: usize = LENGTH_OFFSET + 5;

/// Bytes of an edit before its content.
const EDIT_HEADER_SIZE: usize = 20;

/// The largest number in a manifest. No store reaches it, and there is room to count on from it.
pub(crate) const COUNT_MAX: u64 = 1 << 62;

/// The names of its copies.
pub(crate) const COPIES: [&str; 2] = ["manifest.a", "manifest.b"];

/// The named tables as a checkpoint left them, from which the log leads to versions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct VersionBase {
    /// The last commit that is in the runs of the tables.
    pub(crate) commit: u64,
    /// The segment of the log that goes on from there; 0 if there was no log.
    pub(crate) segment: u64,
    /// By number.
    pub(crate) tables: Vec<NamedMeta>,
}

/// The state of all named tables after a commit, kept: those of its base, with the log applied up
/// to that commit.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct VersionMeta {
    /// That commit.
    pub(crate) number: u64,
    /// Empty for none.
    pub(crate) name: String,
    /// Shared by neighbouring versions.
    pub(crate) base: Arc<VersionBase>,
    /// The last segment of the log that the version needs, from that of its base on; 0 if it needs
    /// none.
    pub(crate) until: u64,
}

/// A change of the list of versions, appended to a manifest.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Edit {
    /// A version more, or a name for the last one.
    Retain(VersionMeta),
    /// The version of that number is gone.
    Release(u64),
}

/// The state of all named tables.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct StoreManifest {
    /// Whether it is the manifest of a backup, which nobody has committed to.
    pub(crate) is_backup: bool,
    /// Counts manifests, without their edits.
    pub(crate) sequence: u64,
    /// Counts the edits behind that one.
    pub(crate) edits: u32,
    /// The last commit that is in the tables.
    pub(crate) commit: u64,
    /// The first segment of the log that is needed.
    pub(crate) segment: u64,
    /// The number of the next table.
    pub(crate) next_table: u64,
    /// By number.
    pub(crate) tables: Vec<NamedMeta>,
    /// Retained versions, ascending.
    pub(crate) versions: Vec<VersionMeta>,
    /// Changes that the WAL has no record of, for feeds; oldest first.
    pub(crate) history: Vec<HistoryEntry>,
    /// Whether the store has had an index, so that its lists of tables say which are. Stays.
    pub(crate) has_indexes: bool,
}

impl VersionBase {
    /// Whether it has these tables, under these names and with this configuration.
    pub(crate) fn has_tables(&self, tables: &[NamedMeta]) -> bool {
        let is_same = |(one, other): (&NamedMeta, &NamedMeta)| {
            one.is_same_table(other) && one.meta.config == other.meta.config
        };
        self.tables.len() == tables.len() && self.tables.iter().zip(tables).all(is_same)
    }

    /// The numbers of all run files that its tables need; of several tables as often.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.tables.iter().flat_map(|table| table.meta.numbers())
    }
}

impl VersionMeta {
    /// Its name, or its number.
    fn title(&self) -> String {
        if self.name.is_empty() { self.number.to_string() } else { self.name.clone() }
    }

    /// The first segment of the log that the version needs; `u64::MAX` if it needs none.
    pub(crate) fn first_segment(&self) -> u64 {
        if self.until == 0 { u64::MAX } else { self.base.segment }
    }

    /// Whether reading the version takes that segment of the log.
    fn needs_segment(&self, number: u64) -> bool {
        self.first_segment() <= number && number <= self.until
    }
}

/// Versions of one base, oldest first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VersionGroup<'a>(pub(crate) &'a [VersionMeta]);

impl<'a> VersionGroup<'a> {
    pub(crate) fn base(&self) -> &'a Arc<VersionBase> {
        debug_assert!(!self.0.is_empty(), "groups are never empty");
        &self.0[0].base
    }

    /// The last segment of the log that they need; 0 if they need none.
    pub(crate) fn until(&self) -> u64 {
        self.0.iter().map(|version| version.until).max().unwrap_or(0)
    }

    /// The tables of the base, for whoever asks what needs a file.
    pub(crate) fn users(&self) -> impl Iterator<Item = (String, &'a NamedMeta)> + use<'a> {
        let first = self.0.first().map(VersionMeta::title).unwrap_or_default();
        let last = self.0.last().map(VersionMeta::title).unwrap_or_default();
        let versions = if self.0.len() == 1 { first } else { format!("{first}..{last}") };
        self.base().tables.iter().map(move |table| (format!("{}@{versions}", table.name), table))
    }
}

impl Found {
    /// Both manifests.
    pub(crate) fn manifests(&self) -> impl Iterator<Item = &StoreManifest> {
        self.manifest.iter().chain(&self.older)
    }
}

impl StoreManifest {
    /// The versions, those of one base together.
    pub(crate) fn groups(&self) -> impl Iterator<Item = VersionGroup<'_>> {
        let is_one = |one: &VersionMeta, next: &VersionMeta| Arc::ptr_eq(&one.base, &next.base);
        self.versions.chunk_by(is_one).map(VersionGroup)
    }

    /// All tables, those of the bases of versions too, each base once, and loads of the history.
    pub(crate) fn all_tables(&self) -> impl Iterator<Item = &NamedMeta> {
        let loads = self.loads().map(|(_, table)| table);
        let of_bases = self.groups().flat_map(|group| &group.base().tables);
        self.tables.iter().chain(of_bases).chain(loads)
    }

    /// Tables of the history that have their files, with the sequence numbers of their entries.
    pub(crate) fn loads(&self) -> impl Iterator<Item = (u64, &NamedMeta)> {
        self.history.iter().filter_map(|entry| Some((entry.sequence, entry.event.load()?)))
    }

    /// The load of the entry with that sequence number.
    pub(crate) fn load(&self, sequence: u64) -> Option<&NamedMeta> {
        self.loads().find(|(found, _)| *found == sequence).map(|(_, table)| table)
    }

    /// Lets go of the files of all loads: feeds tell no more than the names of the tables.
    pub(crate) fn let_go_of_loads(&mut self) {
        self.history.iter_mut().for_each(|entry| entry.event.let_go());
    }

    /// Whether a version needs that segment of the log.
    pub(crate) fn needs_segment(&self, number: u64) -> bool {
        self.versions.iter().any(|version| version.needs_segment(number))
    }

    /// The first segment of the log that a version needs; `u64::MAX` if none needs any.
    pub(crate) fn first_segment_of_versions(&self) -> u64 {
        self.versions.iter().map(VersionMeta::first_segment).min().unwrap_or(u64::MAX)
    }

    /// Orders manifests: the newer one of two is greater.
    pub(crate) fn age(&self) -> (u64, u32) {
        (self.sequence, self.edits)
    }

    /// The same with an edit applied; says whether it fits.
    pub(crate) fn apply(&mut self, edit: Edit) -> bool {
        match edit {
            Edit::Release(number) => {
                let count = self.versions.len();
                self.versions.retain(|version| version.number != number);
                if self.versions.len() == count {
                    return false;
                }
            }
            Edit::Retain(version) => {
                let taken = |other: &VersionMeta| {
                    !version.name.is_empty()
                        && other.name == version.name
                        && other.number != version.number
                };
                if self.versions.iter().any(taken) {
                    return false;
                }
                // Only the last version can still get a name, and versions stay in ascending order.
                match self.versions.last_mut() {
                    Some(last) if last.number == version.number => last.name = version.name,
                    Some(last) if last.number > version.number => return false,
                    _ => self.versions.push(version),
                }
            }
        }

        debug_assert!(self.versions.is_sorted_by(|one, next| one.number < next.number));
        self.edits += 1;
        true
    }

    /// The numbers of all run files that the tables need; of several tables as often.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.all_tables().flat_map(|table| table.meta.numbers())
    }

    /// Makes it known that indexes or their tables may have lost entries.
    pub(crate) fn distrust_indexes(&mut self) {
        self.change_named(&|table| {
            if let Some(derived) = &mut table.derived {
                derived.version = 0;
            }
        });
    }

    /// Lets `change` change the state of every table, those of the bases of versions too, but not
    /// of loads.
    pub(crate) fn change_tables(&mut self, change: &dyn Fn(&mut SnapshotMeta)) {
        self.change_named(&|table| change(&mut table.meta));
    }

    fn change_named(&mut self, change: &dyn Fn(&mut NamedMeta)) {
        self.tables.iter_mut().for_each(change);

        // Versions of one base share it, and go on to.
        let mut changed: Option<(Arc<VersionBase>, Arc<VersionBase>)> = None;
        for version in &mut self.versions {
            let base = match changed.take() {
                Some((old, new)) if Arc::ptr_eq(&old, &version.base) => (old, new),
                _ => {
                    let mut new = VersionBase::clone(&version.base);
                    new.tables.iter_mut().for_each(change);
                    (Arc::clone(&version.base), Arc::new(new))
                }
            };
            version.base = Arc::clone(&base.1);
            changed = Some(base);
        }
    }

    /// Whether both have the same tables under the same names.
    pub(crate) fn has_tables_of(&self, other: &Self) -> bool {
        let is_same = |(one, other): (&NamedMeta, &NamedMeta)| one.is_same_table(other);
        self.tables.len() == other.tables.len()
            && self.tables.iter().zip(&other.tables).all(is_same)
    }

    /// Notes a change that the WAL has no record of, in the manifest that follows on `before`: of
    /// commit `commit`, or behind it.
    pub(crate) fn note(&mut self, before: &Self, commit: u64, event: HistoryEvent) {
        let sequence = before.sequence + 1;
        self.history.push(HistoryEntry { sequence, commit, event });
        history::limit(&mut self.history);
    }

    /// The version of the format that it is written in.
    pub(crate) fn version_of_format(&self) -> u32 {
        match (self.has_indexes, self.history.is_empty()) {
            _ if self.has_loads() => STORE_VERSION_LOADS,
            (true, _) => STORE_VERSION_INDEXES,
            (false, true) => STORE_VERSION,
            (false, false) => STORE_VERSION_HISTORY,
        }
    }

    /// The form of its lists of tables.
    fn list_form(&self) -> ListForm {
        let is_plain = !self.has_indexes && !self.has_loads();
        if is_plain { ListForm::Plain } else { ListForm::WithIndexes }
    }

    fn has_loads(&self) -> bool {
        self.loads().next().is_some()
    }

    /// The indexes of a table.
    pub(crate) fn indexes_of(&self, id: u64) -> impl Iterator<Item = &NamedMeta> {
        let is_of = move |derived: Derived| derived.source == id;
        self.tables.iter().filter(move |table| table.derived.is_some_and(is_of))
    }

    /// Makes ordinary tables of all indexes.
    pub(crate) fn forget_indexes(&mut self) {
        self.tables.iter_mut().for_each(|table| table.derived = None);
    }

    /// The manifest as a whole, without edits.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.put(&STORE_MAGIC).u32(self.version_of_format()).u32(0);
        out.u8(1 + u8::from(self.is_backup));
        out.u64(self.sequence).u64(self.commit).u64(self.segment).u64(self.next_table);
        let form = self.list_form();
        put_tables(&mut out, &self.tables, form);

        out.u32(self.versions.len() as u32);
        let mut before: Option<&VersionMeta> = None;
        for version in &self.versions {
            put_version(&mut out, version, before, form);
            before = Some(version);
        }
        if self.has_loads() {
            out.u8(u8::from(self.has_indexes));
        }
        if self.has_indexes || !self.history.is_empty() {
            put_history(&mut out, &self.history, form);
        }

        let mut bytes = out.into_bytes();
        // The length counts the checksum, which follows.
        let length = bytes.len() as u32 + 4;
        bytes[LENGTH_OFFSET..LENGTH_OFFSET + 4].copy_from_slice(&length.to_le_bytes());
        let crc = crc32c(&bytes);
        bytes.extend(crc.to_le_bytes());
        debug_assert_eq!(bytes.len(), length as usize, "the length is that of the body");
        bytes
    }

    /// The bytes of an edit behind this manifest.
    pub(crate) fn encode_edit(&self, edit: &Edit) -> Vec<u8> {
        let mut out = Writer::new();
        out.u32(0).u32(0).u64(self.sequence).u32(self.edits + 1);
        match edit {
            Edit::Retain(version) => {
                put_version(out.u8(1), version, self.versions.last(), self.list_form());
            }
            Edit::Release(number) => {
                out.u8(2).u64(*number);
            }
        }

        let mut bytes = out.into_bytes();
        debug_assert!(bytes.len() > EDIT_HEADER_SIZE, "a shorter edit counts as torn");
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        let crc = crc32c(&bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The manifest that a file holds, its edits applied.
    ///
    /// The bytes that follow the last whole edit are ignored: an edit is acknowledged when both
    /// copies have it.
    pub(crate) fn decode(bytes: &[u8]) -> std::result::Result<Self, Refused> {
        let (body, mut edits) = bytes.split_at(body_len(bytes)?);
        let mut manifest = Self::decode_body(body)?;
        while let Some((edit, len)) = manifest.next_edit(edits) {
            if !manifest.apply(edit) {
                // An edit that does not fit was never acknowledged, nor was any after it.
                break;
            }
            edits = &edits[len..];
        }
        Ok(manifest)
    }

    /// How many bytes of a file the manifest and its whole edits take; 0 if there is no whole one.
    pub(crate) fn whole_len(bytes: &[u8]) -> usize {
        let Ok(mut at) = body_len(bytes) else { return 0 };
        let Ok(mut manifest) = Self::decode_body(&bytes[..at]) else { return 0 };
        while let Some((edit, len)) = manifest.next_edit(&bytes[at..]) {
            if !manifest.apply(edit) {
                break;
            }
            at += len;
        }
        debug_assert!(at <= bytes.len(), "what is whole is there");
        at
    }

    fn decode_body(body: &[u8]) -> std::result::Result<Self, Refused> {
        let (mut input, version) = match snapshot_meta::open(body, STORE_MAGIC, STORE_VERSION_LOADS)
        {
            Err(Refused::Version { found: found @ STORE_VERSION..STORE_VERSION_LOADS, .. }) => {
                (snapshot_meta::open(body, STORE_MAGIC, found)?, found)
            }
            opened => (opened?, STORE_VERSION_LOADS),
        };
        let has_history = version >= STORE_VERSION_HISTORY;
        let is_plain = version < STORE_VERSION_INDEXES;
        let form = if is_plain { ListForm::Plain } else { ListForm::WithIndexes };
        input.u32()?;
        let is_backup = match input.u8()? {
            1 => false,
            2 => true,
            _ => return snapshot_meta::damaged("unknown kind of store"),
        };

        let sequence = input.u64()?;
        let commit = input.u64()?;
        let segment = input.u64()?;
        let next_table = input.u64()?;

        // Counts are added to, so there must be room above them.
        let counts = [sequence, commit, segment, next_table];
        if sequence == 0 || counts.iter().any(|&count| count > COUNT_MAX) {
            return snapshot_meta::damaged("a count that no store reaches");
        }

        let tables = take_tables(&mut input, next_table, form)?;
        check_indexes(&tables)?;
        let mut versions: Vec<VersionMeta> = Vec::new();
        for _ in 0..input.u32()? {
            let version = take_version(&mut input, (next_table, form), versions.last())?;
            // The next version names its base by the version before, so their order matters.
            if versions.last().is_some_and(|last| last.number >= version.number) {
                return snapshot_meta::damaged("numbers of versions out of order");
            }
            if !version.name.is_empty() && versions.iter().any(|v| v.name == version.name) {
                return snapshot_meta::damaged("two versions of one name");
            }
            versions.push(version);
        }

        let has_indexes = match version {
            STORE_VERSION_LOADS => match input.u8()? {
                0 => false,
                1 => true,
                _ => return snapshot_meta::damaged("unknown form of lists of tables"),
            },
            version => version == STORE_VERSION_INDEXES,
        };
        let history = if has_history {
            take_history(&mut input, (sequence, COUNT_MAX), (next_table, form))?
        } else {
            Vec::new()
        };

        if !input.rest().is_empty() {
            return snapshot_meta::damaged("bytes after the end");
        }
        let manifest = Self {
            is_backup,
            sequence,
            edits: 0,
            commit,
            segment,
            next_table,
            tables,
            versions,
            history,
            has_indexes,
        };
        // Programs of an earlier version do not know of files that only the history names.
        if manifest.has_loads() != (version == STORE_VERSION_LOADS) {
            return snapshot_meta::damaged("loads in a manifest of another version");
        }
        Ok(manifest)
    }

    /// The edit at the beginning of some bytes, if a whole one follows on this manifest there, and
    /// its length.
    fn next_edit(&self, bytes: &[u8]) -> Option<(Edit, usize)> {
        let mut input = Reader::new(bytes);
        let len = input.u32().ok()? as usize;

        let crc = input.u32().ok()?;
        // A torn edit is shorter than it says.
        let edit = bytes.get(..len).filter(|edit| edit.len() > EDIT_HEADER_SIZE)?;
        if crc32c(&edit[8..]) != crc {
            return None;
        }

        let mut input = Reader::new(&edit[8..]);
        // Edits count up, so a lost one hides all later ones.
        if (input.u64().ok()?, input.u32().ok()?) != (self.sequence, self.edits + 1) {
            return None;
        }

        let list = (self.next_table, self.list_form());
        let edit = match input.u8().ok()? {
            1 => Edit::Retain(take_version(&mut input, list, self.versions.last()).ok()?),
            2 => Edit::Release(input.u64().ok()?),
            _ => return None,
        };

        input.rest().is_empty().then_some((edit, len))
    }
}

/// The length of the manifest at the beginning of a file, without edits.
fn body_len(bytes: &[u8]) -> std::result::Result<usize, Refused> {
    let field = |at: usize| {
        let field = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
        field.map_or(0, |field| u32::from_le_bytes(*field))
    };

    // Another version may have its fields elsewhere.
    if !(STORE_VERSION..=STORE_VERSION_LOADS).contains(&field(STORE_MAGIC.len())) {
        // Says which version it is, if the file is whole.
        snapshot_meta::open(bytes, STORE_MAGIC, STORE_VERSION_LOADS)?;
    }

    let length = field(LENGTH_OFFSET) as usize;
    if !(LENGTH_OFFSET + 8..=bytes.len()).contains(&length) {
        return snapshot_meta::damaged("a length that the file does not have");
    }
    Ok(length)
}

/// Writes a version, behind the one `before`, whose base it may share.
fn put_version(
    out: &mut Writer,
    version: &VersionMeta,
    before: Option<&VersionMeta>,
    form: ListForm,
) {
    out.u64(version.number).string(version.name.as_bytes()).u64(version.until);
    // A base is written once for all versions that share it.
    if before.is_some_and(|before| Arc::ptr_eq(&before.base, &version.base)) {
        out.u8(0);
        return;
    }
    out.u8(1).u64(version.base.commit).u64(version.base.segment);
    put_tables(out, &version.base.tables, form);
}

/// Reads what [`put_version`] wrote.
fn take_version(
    input: &mut Reader<'_>,
    (next_table, form): (u64, ListForm),
    before: Option<&VersionMeta>,
) -> std::result::Result<VersionMeta, Refused> {
    let number = input.u64()?;
    let name = take_name(input)?;
    let until = input.u64()?;

    let base = match (input.u8()?, before) {
        (0, Some(before)) => Arc::clone(&before.base),
        (1, _) => {
            let commit = input.u64()?;
            let segment = input.u64()?;
            let tables = take_tables(input, next_table, form)?;
            check_indexes(&tables)?;
            Arc::new(VersionBase { commit, segment, tables })
        }
        _ => return snapshot_meta::damaged("unknown tag of a version"),
    };

    let counts = [number, until, base.commit, base.segment];
    if counts.iter().any(|&count| count > COUNT_MAX) {
        return snapshot_meta::damaged("a count that no store reaches");
    }
    // A version is its base, or lies on the log behind the base.
    let has_log = base.segment > 0 && base.segment <= until;

    let is_right = if until == 0 { number == base.commit } else { has_log && number > base.commit };
    if !is_right {
        return snapshot_meta::damaged("a version that the log of its base does not lead to");
    }
    Ok(VersionMeta { number, name, base, until })
}

/// Both copies of a manifest, as read.
#[derive(Debug)]
pub(crate) struct Found {
    /// The newest; `None` if there never was one.
    pub(crate) manifest: Option<StoreManifest>,
    /// The bytes of that one and of its edits.
    pub(crate) bytes: Vec<u8>,
    /// The other one, if it is whole and older. What it names must stay until it is written anew:
    /// the newest may be seen and yet not be durable.
    pub(crate) older: Option<StoreManifest>,
    /// Copies that are missing or not whole.
    pub(crate) stale: Vec<PathBuf>,
    /// Damage of the copies that exist and are not whole.
    pub(crate) damage: Vec<(PathBuf, String)>,
}

/// Why a copy of the manifest that cannot be read is as a damaged one, if it is: the other copy may
/// be whole.
pub(crate) fn read_fault(error: &terrane_io::Error) -> Option<String> {
    match error.system_kind() {
        Some(ErrorKind::FileTooLarge) => Some("larger than any manifest".to_owned()),
        _ => unreadable(error),
    }
}

/// The sequence number that the first copy has, if it is whole so far as that can be told from its
/// first bytes: a cheap way to see that there is a newer manifest. Edits do not change it.
///
/// Cost: one small read.
pub(crate) fn peek_sequence(disk: &dyn Disk, dir: &Path) -> Option<u64> {
    let path = dir.join(COPIES[0]);
    let file = disk.open(&path, OpenMode::Read, Access::Buffered).ok()?;
    let mut bytes = [0; SEQUENCE_OFFSET + 8];
    file.read_at(&mut bytes, 0).ok()?;
    let (head, sequence) = bytes.split_last_chunk::<8>()?;
    head.starts_with(&STORE_MAGIC).then(|| u64::from_le_bytes(*sequence))
}

/// Reads the manifest of the store in `dir`. A copy that cannot be read is a damaged one.
///
/// # Errors
/// [`Error::StoreCorrupted`] if there was one and no copy is whole, [`Error::UnknownVersion`],
/// [`Error::Disk`].
pub(crate) fn read(disk: &dyn Disk, dir: &Path) -> Result<Found> {
    let mut found = Found {
        manifest: None,
        bytes: Vec::new(),
        older: None,
        stale: Vec::new(),
        damage: Vec::new(),
    };

    let mut whole = Vec::new();
    let mut refused = None;
    for name in COPIES {
        let path = dir.join(name);
        let bytes = match read_file(disk, &path, MANIFEST_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => {
                found.stale.push(path);
                continue;
            }
            Err(error) => {
                let reason = read_fault(&error).ok_or_else(|| error.clone())?;
                // A copy that cannot be read is like a damaged one: the other may be whole.
                found.damage.push((path, reason));
                refused.get_or_insert(error);
                continue;
            }
        };

        match StoreManifest::decode(&bytes) {
            Ok(manifest) => whole.push((manifest, bytes)),
            Err(Refused::Damaged(reason)) => found.damage.push((path, reason)),
            // Another version is no damage: an older copy beside it would lose commits.
            Err(Refused::Version { found, newest }) => {
                return Err(Error::UnknownVersion { path, found, newest });
            }
        }
    }

    let newest = whole.iter().map(|(manifest, _)| manifest.age()).max();
    for (manifest, mut bytes) in whole {
        if Some(manifest.age()) == newest {
            // Bytes behind the last whole edit were never acknowledged.
            bytes.truncate(StoreManifest::whole_len(&bytes));
            found.bytes = bytes;
            found.manifest.get_or_insert(manifest);
        } else {
            found.older = Some(manifest);
        }
    }

    if found.manifest.is_none() {
        let damage = match found.damage.first().cloned() {
            Some(damage) => Some(damage),
            None => lost(disk, dir)?,
        };
        if let Some(error) =
            refused.filter(|error| error.system_kind() != Some(ErrorKind::FileTooLarge))
        {
            return Err(error.into());
        }
        if let Some((path, reason)) = damage {
            return Err(Error::StoreCorrupted { path, reason });
        }
    }

    debug_assert!(
        found.older.iter().all(|older| Some(older.age()) < newest),
        "the newest copy is the manifest"
    );
    debug_assert!(
        found.manifest.is_some() || found.older.is_none(),
        "an older copy stands beside a newer one"
    );
    debug_assert_eq!(found.manifest.is_some(), !found.bytes.is_empty(), "a manifest has bytes");

    for (path, reason) in &found.damage {
        event!(WARN, "store.manifest_damaged", dir, path = %path.display(), reason);
    }
    found.stale.extend(found.damage.iter().map(|(path, _)| path.clone()));
    Ok(found)
}

/// Where there is no copy of the manifest: whether there must have been one; the path of a copy and
/// the reason.
///
/// # Errors
/// [`Error::UnknownVersion`], [`Error::Disk`].
pub(crate) fn lost(disk: &dyn Disk, dir: &Path) -> Result<Option<(PathBuf, String)>> {
    let Some(number) = wal::written_segment(disk, dir)? else { return Ok(None) };
    for name in COPIES {
        // Beside a writer the first one may have come meanwhile; it came before any commit.
        if disk.kind(&dir.join(name))?.is_some() {
            return Ok(None);
        }
    }
    let segment = wal::segment_name(number);
    let reason = format!(
        "both copies of the manifest are missing, and {segment} tells that there was one: put a copy back"
    );
    Ok(Some((dir.join(COPIES[0]), reason)))
}
