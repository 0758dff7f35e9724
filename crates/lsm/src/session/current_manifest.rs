//! The manifest of a store that is open: what stands on disk, and how another one takes its place.

use std::path::Path;
use std::sync::Arc;

use terrane_io::rare;
use terrane_io::{Access, OpenMode};

use crate::error::{Error, Result};
use crate::manifest::manifest::{COPIES, Edit, StoreManifest, VersionBase};
use crate::manifest::snapshot_meta::MANIFEST_BYTES_MAX;
use crate::session::inner::{ACTIVE, SessionInner};
use crate::trace::event;

/// Edits of fewer bytes stay behind a manifest however small that is.
const EDIT_BYTES_MIN: u64 = 16 << 10;

/// The manifest on disk.
#[derive(Debug, Default)]
pub(crate) struct CurrentManifest {
    pub(crate) manifest: StoreManifest,
    /// Files that an older copy names, which may be the one that survives; pinned until both are
    /// new.
    pub(crate) older: Vec<u64>,
    /// How long both copies are, without and with their edits, if this process has written them.
    /// Nothing is appended to others: nobody knows what stands behind their last edit.
    len: Option<(u64, u64)>,
    /// The base that the versions to come share with the last one.
    pub(crate) chain: Option<Chain>,
}

/// A base, and the log from there on, all of which is kept for the versions to come.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) base: Arc<VersionBase>,
    /// How many bytes of the log this process had written there.
    pub(crate) start: u64,
    /// Whether a version was retained since the last checkpoint.
    pub(crate) is_used: bool,
}

/// Whether a rename has failed, and may have been done.
fn is_of_rename(error: &Error) -> bool {
    matches!(error, Error::Disk(terrane_io::Error::Io { call: "rename", .. }))
}

impl CurrentManifest {
    /// A manifest that another process has written; `older` are files that an older copy names.
    pub(crate) fn found(manifest: StoreManifest, older: Vec<u64>) -> Self {
        Self { manifest, older, ..Self::default() }
    }

    /// Notes a checkpoint: a chain ends with the first one before which no version was retained, so
    /// that one version keeps little of the log.
    pub(crate) fn age_chain(&mut self) {
        self.chain = self.chain.take().filter(|chain| chain.is_used);
        if let Some(chain) = &mut self.chain {
            chain.is_used = false;
        }
    }

    /// The chain, if the last version is of its base: else nothing keeps the runs of that base.
    pub(crate) fn live_chain(&self) -> Option<&Chain> {
        let last = self.manifest.versions.last()?;
        self.chain.as_ref().filter(|chain| Arc::ptr_eq(&chain.base, &last.base))
    }

    /// Whether a version, or one that may be retained next, needs that segment of the log.
    pub(crate) fn needs_segment(&self, number: u64) -> bool {
        let is_of = |chain: &Chain| number >= chain.base.segment;
        self.live_chain().is_some_and(is_of) || self.manifest.needs_segment(number)
    }

    /// How long a copy is, about.
    pub(crate) fn bytes(&self) -> u64 {
        match self.len {
            Some((_, len)) => len,
            None => self.manifest.encode().len() as u64,
        }
    }

    /// Writes a manifest whose files are durable. Says whether both copies are new.
    pub(crate) fn publish(&mut self, inner: &SessionInner, next: StoreManifest) -> Result<bool> {
        let next = StoreManifest { sequence: self.manifest.sequence + 1, edits: 0, ..next };
        let files = inner.files();
        // Until both copies are whole, nothing is appended to them.
        self.len = None;

        debug_assert!(
            next.tables.is_sorted_by(|one, next| one.id < next.id),
            "a manifest with tables out of order is refused"
        );
        debug_assert!(
            next.versions.is_sorted_by(|one, next| one.number < next.number),
            "a manifest with versions out of order is refused"
        );
        let bytes = next.encode();
        if bytes.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(Error::SnapshotTooLarge { bytes: bytes.len(), limit: MANIFEST_BYTES_MAX });
        }
        // Names of runs are durable before a manifest names the runs.
        inner.sync_dir(ACTIVE)?;
        files.pin(next.numbers());
        let _right = files.handles().may_write()?;
        let [first, second] = COPIES.map(|name| inner.dir().join(name));

        if let Err(error) = inner.write_whole(&first, &bytes) {
            if is_of_rename(&error) {
                rare::taken("a manifest may have its name or not");
                // Nobody knows whether it has its name.
                inner.poison(&first, error)?;
            } else {
                unpin(inner, next.numbers().collect());
                return Err(error);
            }
        }

        let both = inner.write_whole(&second, &bytes);

        // After a failed sync the copies may be there or not: what they name stays.
        inner.sync_root()?;
        let old = std::mem::replace(&mut self.manifest, next);
        debug_assert_eq!(self.manifest.sequence, old.sequence + 1, "manifests are numbered");
        debug_assert_eq!(self.manifest.edits, 0, "no edit stands behind a new manifest");
        self.older.extend(old.numbers());

        if let Err(error) = both {
            event!(WARN, "cleanup.failed", inner.dir(), %error);
            return Ok(false);
        }

        unpin(inner, std::mem::take(&mut self.older));
        debug_assert!(self.older.is_empty(), "both copies are new, so no older file is needed");
        let len = bytes.len() as u64;
        self.len = Some((len, len));
        Ok(true)
    }

    /// Changes the list of versions, durably. Says whether both copies have that.
    ///
    /// Cost: appends the edit to both copies and syncs them; writes both anew if their edits are
    /// longer than the rest, or if another process has written them.
    pub(crate) fn amend(&mut self, inner: &SessionInner, edit: Edit) -> Result<bool> {
        let bytes = self.manifest.encode_edit(&edit);
        let mut next = self.manifest.clone();
        let fits = next.apply(edit);
        assert!(fits, "an edit of the versions that are there");
        debug_assert_eq!(next.edits, self.manifest.edits + 1, "edits count up");
        debug_assert_eq!(next.sequence, self.manifest.sequence, "an edit is of its manifest");
        let Some((body, len)) = self.len else { return self.publish(inner, next) };

        debug_assert!(body <= len, "edits stand behind the body");
        let new_len = len + bytes.len() as u64;
        debug_assert!(len < new_len, "an edit has bytes");
        // Longer edits would cost more to read than a manifest written anew.
        if new_len - body > body.max(EDIT_BYTES_MIN) || new_len > MANIFEST_BYTES_MAX {
            return self.publish(inner, next);
        }

        let (added, removed) = changed_bases(&self.manifest, &next);
        // Pinned before the edit makes them needed.
        inner.files().pin(added.iter().copied());
        let [first, second] = COPIES.map(|name| inner.dir().join(name));
        let right = inner.files().handles().may_write()?;
        self.len = None;

        if let Err(error) = append(inner, &first, &bytes, len) {
            inner.files().check_poisoned()?;
            event!(WARN, "cleanup.failed", inner.dir(), %error);
            unpin(inner, added);
            drop(right);
            return self.publish(inner, next);
        }

        let both = append(inner, &second, &bytes, len);
        inner.files().check_poisoned()?;
        self.manifest = next;
        self.older.extend(removed);

        if let Err(error) = both {
            event!(WARN, "cleanup.failed", inner.dir(), %error);
            return Ok(false);
        }

        self.len = Some((body, new_len));
        if !self.older.is_empty() {
            unpin(inner, std::mem::take(&mut self.older));
        }
        Ok(true)
    }
}

/// Makes edits durable that a process has left which may have died before they were: from here on
/// they are relied on.
///
/// # Errors
/// [`Error::Disk`], [`Error::Poisoned`].
pub(crate) fn sync_edits<'a>(
    inner: &SessionInner,
    mut manifests: impl Iterator<Item = &'a StoreManifest>,
) -> Result<()> {
    if manifests.all(|manifest| manifest.edits == 0) {
        return Ok(());
    }
    for name in COPIES {
        let path = inner.dir().join(name);
        let file = inner.disk().open(&path, OpenMode::ReadWrite, Access::Buffered)?;
        inner.files().synced(&path, file.sync())?;
    }
    Ok(())
}

/// The files of bases that an edit has brought, and of those that no version has any more.
fn changed_bases(old: &StoreManifest, new: &StoreManifest) -> (Vec<u64>, Vec<u64>) {
    let only_in = |one: &StoreManifest, other: &StoreManifest| -> Vec<u64> {
        let bases = one.groups().map(|group| group.base());
        let is_there =
            |base: &Arc<VersionBase>| other.groups().any(|group| Arc::ptr_eq(group.base(), base));
        bases.filter(|base| !is_there(base)).flat_map(|base| base.numbers()).collect()
    };
    (only_in(new, old), only_in(old, new))
}

/// Appends an edit to a copy of `len` bytes, and syncs it. After a failed write the copy is as it
/// was.
///
/// One copy is durable before the other one is touched: what a loss of power does to a sector that
/// is being written, it does to one copy.
fn append(inner: &SessionInner, path: &Path, bytes: &[u8], len: u64) -> Result<()> {
    let files = inner.files().handles();
    let open = || inner.disk().open(path, OpenMode::ReadWrite, Access::Buffered);
    let file = files.with_room(open)?;
    if let Err(error) = files.with_space(|| file.write_at(bytes, len)) {
        // A part of the edit may be there, or all of it.
        file.set_len(len).or_else(|error| inner.poison(path, error.into()))?;
        return Err(error.into());
    }
    inner.files().synced(path, file.sync())
}

/// Lets go of files that no manifest names any more.
fn unpin(inner: &SessionInner, numbers: Vec<u64>) {
    if let Err(error) = inner.let_go(numbers) {
        event!(WARN, "cleanup.failed", inner.dir(), %error);
    }
}
