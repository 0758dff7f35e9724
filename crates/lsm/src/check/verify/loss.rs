//! Lets go of what is damaged, where that is accepted, so that the rest can be used again.
//!
//! Dropped is this, and nothing else:
//! - of a run, the entries on its damaged pages; of damaged blobs, these blobs, while the values
//!   stay;
//! - of the log, all commits from the damaged one on, and the versions that need them;
//! - damaged snapshots; both copies of the manifest, if neither is whole: then the named tables;
//! - what an unfinished merge or union has written, which loses nothing: it begins anew.
//!
//! **Older values.** Where an entry is gone, an older one of its key shows, if an older run has
//! one: a value that was replaced, or a key that was deleted. It stays, since the damaged page may
//! have held one key of the thousands that an older run has in the same range.
//! [`LostWhat::Entries`] says whether there is anything older.
//!
//! **Order.** New runs first, under new numbers; then the manifest, then snapshots, then the log.
//! Each file is replaced by a rename, and what refers to a run is durable after the run. So a crash
//! leaves a part of the damage where it was, to be repaired again, and perhaps files that nothing
//! names. Damaged runs stay in their place, and opening moves them to `lost+found`; snapshots,
//! manifests and segments of the log go there at once.
//!
//! Nothing is done where a newer program has written something, or where neither a manifest nor a
//! snapshot is whole.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;

use terrane_io::EntryKind;
use terrane_io::files::replace_file;

use super::{AllWanted, Check, Users};
use crate::error::Result;
use crate::files::file_set::{FileSet, Partial, RunRef};
use crate::files::lost_found;
use crate::manifest::feed_cursor;
use crate::manifest::manifest::{COPIES, StoreManifest};
use crate::manifest::snapshot_meta::SnapshotMeta;
use crate::manifest::wal::{LOG, segment_name};
use crate::manifest::wal_salvage::{DamagedWal, Rewrites};
use crate::run::run::Run;
use crate::run::salvage::{DamagedRun, KeyGap, Salvaged, salvage};
use crate::session::inner::{ACTIVE, SNAPSHOTS, snapshot_name, snapshot_path};
use crate::session::snapshot::run_ref;

/// Something that a repair has let go of.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Lost {
    /// The damaged file, or the directory that was missing.
    pub path: PathBuf,
    /// Lost part of the file.
    pub what: LostWhat,
    /// The snapshots that had it, by name.
    pub snapshots: Vec<String>,
    /// The named tables that had it.
    pub tables: Vec<String>,
}

/// Data that a repair dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum LostWhat {
    /// The entries of some keys, which were on damaged pages of a run.
    Entries {
        /// Where the keys are, ascending. Entries of keys between these that are there were on
        /// other pages.
        keys: Vec<KeyGap>,
        /// How many, if the footer of the run tells.
        entries: Option<u64>,
        /// How many pages they were on.
        pages: u64,
        /// Whether there are older runs: values and keys that had been replaced or deleted may show
        /// again.
        shows_older: bool,
    },
    /// The blobs of some keys, whose values are there.
    Blobs {
        /// Where the keys are, ascending: all keys of the run between these.
        keys: Vec<KeyGap>,
        /// How many.
        blobs: u64,
    },
    /// Commits that were in the log only.
    Commits {
        /// The commit that the tables are at now.
        after: u64,
        /// The last one that anything tells of.
        until: Option<u64>,
    },
    /// A retained version.
    Version {
        /// Its number.
        number: u64,
        /// Its name; empty for none.
        name: String,
    },
    /// A snapshot.
    Snapshot,
    /// All named tables.
    Tables,
    /// The place of a consumer of the change feed, which must begin anew.
    FeedCursor,
    /// All that a directory held.
    Directory,
}

/// Damage that cannot be repaired without loss.
#[derive(Debug, Default)]
pub(super) struct Damaged {
    /// Runs and outputs of merges, by number.
    pub(super) runs: BTreeSet<u64>,
    pub(super) partials: BTreeSet<u64>,
    /// Files among the snapshots.
    pub(super) snapshots: Vec<(String, EntryKind)>,
    /// Snapshots that are whole.
    pub(super) whole: Vec<(String, SnapshotMeta)>,
    /// Both copies.
    pub(super) manifest: bool,
    pub(super) log: bool,
    /// Names of cursors of feeds.
    pub(super) cursors: Vec<String>,
    /// Directories that are missing.
    pub(super) dirs: Vec<&'static str>,
    /// Whether a newer program has written any of the files.
    pub(super) is_newer: bool,
}

impl Damaged {
    /// Why nothing may be let go of, if so.
    fn obstacle(&self, has_manifest: bool) -> Option<&'static str> {
        if self.is_newer {
            return Some("a newer program has written to it: nothing is dropped");
        }
        let is_rootless = !has_manifest && self.whole.is_empty();
        let has_lost = self.manifest || !self.snapshots.is_empty() || !self.dirs.is_empty();
        (is_rootless && has_lost).then_some(
            "no manifest and no snapshot is whole: nothing would be left; restore a copy",
        )
    }
}

/// The log as it is to be.
struct LogPlan {
    rewrites: Rewrites,
    /// Files of segments behind the end.
    behind: Vec<String>,
    /// Numbers of the versions that go.
    versions: BTreeSet<u64>,
    lost: Vec<Lost>,
}

impl Check<'_> {
    /// Says of each problem whether letting go would end it.
    pub(super) fn settle_droppable(&mut self, has_manifest: bool) {
        let Some(obstacle) = self.damaged.obstacle(has_manifest) else { return };
        let mut is_any = false;
        for problem in &mut self.report.problems {
            is_any |= std::mem::take(&mut problem.droppable);
        }
        // The note says why nothing was dropped, but only if something could have been.
        if is_any && self.accepts_loss {
            self.report.notes.push(obstacle.to_owned());
        }
    }

    /// Lets go of all that is damaged and was not repaired.
    pub(super) fn let_go(
        &mut self,
        files: &Arc<FileSet>,
        wanted: &AllWanted,
        manifest: Option<StoreManifest>,
        salt: Option<u64>,
    ) -> Result<()> {
        if self.report.problems.iter().all(|problem| !problem.droppable || problem.dropped) {
            return Ok(());
        }

        // Directories come first: everything below writes into them.
        for name in std::mem::take(&mut self.damaged.dirs) {
            self.disk.create_dir(&self.dir.join(name))?;
            self.disk.sync_dir(self.dir)?;
            // Runs that are missing are named one by one.
            if name == SNAPSHOTS {
                self.lose(self.dir.join(name), LostWhat::Directory, &Users::default());
            }
        }

        // The log is planned before anything is written: the new manifest depends on the versions
        // that stay.
        let plan = match &manifest {
            Some(manifest) if self.damaged.log => Some(self.plan_log(manifest, salt)?),
            _ => None,
        };

        // No file tells the old salt, so filters and indexes of salvaged runs are made with a new
        // one.
        let salt = match salt {
            Some(salt) => salt,
            None => {
                let salt = RandomState::new().hash_one(0);
                self.write_metadata(salt)?;
                salt
            }
        };

        // Runs come before what refers to them, so that a crash leaves no reference to a missing
        // run.
        let runs = self.salvage_runs(files, wanted, salt)?;
        // Runs that were not salvaged stay. A reference to another run of the same number goes.
        let replace = |run: &RunRef| match runs.get(&run.number) {
            None => Some(*run),
            Some((old, new)) => new.as_ref().filter(|_| old == run).map(run_ref),
        };

        let partials = self.damaged.partials.clone();
        // A compaction whose output is lost begins anew.
        let is_lost = |partial: &Partial| {
            partials.contains(&partial.number) || runs.contains_key(&partial.number)
        };

        let change = |meta: &mut SnapshotMeta| meta.replace_runs(&replace, &is_lost);
        if let Some(manifest) = manifest {
            let mut changed = manifest.clone();
            changed.change_tables(&change);
            if !runs.is_empty() {
                changed.distrust_indexes();
                changed.let_go_of_loads();
            }
            if let Some(plan) = &plan {
                changed.versions.retain(|version| !plan.versions.contains(&version.number));
            }
            self.write_manifest(&manifest, changed)?;
        } else if self.damaged.manifest {
            self.drop_manifest()?;
        }

        for (name, meta) in std::mem::take(&mut self.damaged.whole) {
            let mut changed = meta.clone();
            change(&mut changed);
            if changed != meta {
                let path = snapshot_path(self.dir, &name);
                replace_file(self.disk.as_ref(), &path, &changed.encode())?;
            }
        }

        self.drop_snapshots()?;
        for name in std::mem::take(&mut self.damaged.cursors) {
            feed_cursor::remove(self.disk.as_ref(), self.dir, &name)?;
            let path = feed_cursor::path_of(self.dir, &name);
            self.lose(path, LostWhat::FeedCursor, &Users::default());
        }
        if let Some(plan) = plan {
            self.cut_log(plan)?;
        }

        // Problems end only after everything is durable: an error above leaves them open.
        let problems = self.report.problems.iter_mut();
        for problem in problems.filter(|problem| problem.droppable && !problem.repaired) {
            problem.dropped = true;
        }
        Ok(())
    }

    fn lose(&mut self, path: PathBuf, what: LostWhat, users: &Users) {
        let Users { snapshots, tables } = users.clone();
        self.report.lost.push(Lost { path, what, snapshots, tables });
    }

    /// Writes what is whole of each damaged run as another one. Returns what takes the place of
    /// what, by number.
    fn salvage_runs(
        &mut self,
        files: &Arc<FileSet>,
        wanted: &AllWanted,
        salt: u64,
    ) -> Result<BTreeMap<u64, (RunRef, Option<Run>)>> {
        let mut runs = BTreeMap::new();
        for number in std::mem::take(&mut self.damaged.runs) {
            let Some(wanted) = wanted.runs.get(&number) else { continue };
            let damaged = DamagedRun { run: wanted.run, build: wanted.build };

            let Salvaged { run, gaps, lost, lost_pages, blob_gaps, lost_blobs } =
                salvage(files, &damaged, salt)?;

            let shows_older = wanted.has_older;
            if !wanted.consistent {
                // Those who say that it is another run lose all of that.
                let keys = vec![KeyGap::default()];
                let entries = None;
                let pages = wanted.run.data_pages.into();
                let what = LostWhat::Entries { keys, entries, pages, shows_older };
                self.lose(files.path(number), what, &wanted.users);
            } else if !gaps.is_empty() || run.is_none() {
                let keys = if gaps.is_empty() { vec![KeyGap::default()] } else { gaps };
                let entries = lost;
                let pages = lost_pages.into();
                let what = LostWhat::Entries { keys, entries, pages, shows_older };
                self.lose(files.path(number), what, &wanted.users);
            }

            if lost_blobs > 0 {
                let what = LostWhat::Blobs { keys: blob_gaps, blobs: lost_blobs };
                self.lose(files.blobs_path(number), what, &wanted.users);
            }

            runs.insert(number, (wanted.run, run));
        }

        // The names of the new runs must be durable before a snapshot refers to them.
        self.disk.sync_dir(&self.dir.join(ACTIVE))?;

        // From here on snapshots and tables may refer to them.
        files.pin(runs.values().filter_map(|(_, run)| run.as_ref()).map(Run::number));
        Ok(runs)
    }

    /// Writes both copies of the manifest, if it has changed.
    fn write_manifest(&mut self, old: &StoreManifest, mut new: StoreManifest) -> Result<()> {
        if *old == new {
            return Ok(());
        }

        // Versions that need lost commits are gone, and the report names each of them.
        for version in &old.versions {
            if new.versions.iter().all(|other| other.number != version.number) {
                let number = version.number;
                let name = version.name.clone();
                let what = LostWhat::Version { number, name };
                self.lose(self.dir.join(COPIES[0]), what, &Users::default());
            }
        }

        // The sequence rises, so that after a crash between both copies the new copy counts.
        (new.sequence, new.edits) = (old.sequence + 1, 0);
        let bytes = new.encode();
        for name in COPIES {
            replace_file(self.disk.as_ref(), &self.dir.join(name), &bytes)?;
        }
        Ok(())
    }

    /// Moves what is left of a manifest away, and the log, which nothing can be done with.
    fn drop_manifest(&mut self) -> Result<()> {
        let disk = self.disk.as_ref();
        let log = self.dir.join(LOG);
        if disk.kind(&log)? == Some(EntryKind::Directory) {
            let names: Vec<String> = disk.list(&log)?.into_iter().map(|entry| entry.name).collect();
            lost_found::keep(disk, self.dir, &log, &names)?;
        }

        let mut copies = Vec::new();
        for name in COPIES {
            if disk.kind(&self.dir.join(name))?.is_some() {
                copies.push(name.to_owned());
            }
        }

        lost_found::keep(disk, self.dir, self.dir, &copies)?;
        self.lose(self.dir.join(COPIES[0]), LostWhat::Tables, &Users::default());
        Ok(())
    }

    /// Moves damaged snapshots away.
    fn drop_snapshots(&mut self) -> Result<()> {
        let dir = self.dir.join(SNAPSHOTS);
        let damaged = std::mem::take(&mut self.damaged.snapshots);
        let names: Vec<String> = damaged.iter().map(|(name, _)| name.clone()).collect();
        lost_found::keep(self.disk.as_ref(), self.dir, &dir, &names)?;
        for file_name in names {
            // What can have no snapshot's name is none.
            if let Some(name) = snapshot_name(&file_name) {
                let users = Users { snapshots: vec![name.to_owned()], ..Users::default() };
                self.lose(dir.join(&file_name), LostWhat::Snapshot, &users);
            }
        }
        Ok(())
    }

    /// Fate of the WAL and of the versions that it leads to.
    fn plan_log(&self, manifest: &StoreManifest, salt: Option<u64>) -> Result<LogPlan> {
        let disk = self.disk.as_ref();
        let dir = self.dir;
        let next_table = manifest.next_table;
        let log = DamagedWal { disk, dir, salt, next_table };

        let mut plan = LogPlan {
            rewrites: Rewrites::new(),
            behind: Vec::new(),
            versions: BTreeSet::new(),
            lost: Vec::new(),
        };

        // No version may need commits behind the end of the log that is left.
        let mut last_commit = u64::MAX;
        if manifest.segment > 0 {
            let chain = log.follow((manifest.segment, manifest.commit), None)?;
            last_commit = chain.commit;
            plan.rewrites = chain.rewrites;

            let is_behind = |number: &u64| *number > chain.segment;
            // Segments behind a cut continue lost commits, so they go too.
            if chain.is_cut {
                let behind = log.segments()?.into_iter().filter(is_behind);
                plan.behind = behind.map(segment_name).collect();
                plan.lost.push(Lost {
                    path: log.path(chain.segment),
                    what: LostWhat::Commits {
                        after: chain.commit,
                        until: log.told(chain.segment)?.filter(|until| *until > chain.commit),
                    },
                    snapshots: Vec::new(),
                    tables: Vec::new(),
                });
            }
        }

        for group in manifest.groups().filter(|group| group.until() > 0) {
            let base = group.base();
            let chain = log.follow((base.segment, base.commit), Some(group.until()))?;
            let end = chain.commit.min(last_commit);
            let (kept, lost): (Vec<_>, Vec<_>) = group.0.iter().partition(|v| v.number <= end);
            plan.versions.extend(lost.iter().map(|version| version.number));
            // Segments behind the last version that is kept need no rewriting for this group.
            let needed_to = kept.iter().map(|version| version.until).max().unwrap_or(0);
            for (number, rewrite) in chain.rewrites {
                if number <= needed_to {
                    plan.rewrites.entry(number).or_insert(rewrite);
                }
            }
        }

        Ok(plan)
    }

    /// Writes the log as it is to be.
    fn cut_log(&mut self, plan: LogPlan) -> Result<()> {
        let disk = self.disk.as_ref();
        let dir = self.dir;
        let log = DamagedWal { disk, dir, salt: None, next_table: 0 };
        for (number, rewrite) in &plan.rewrites {
            // The copy comes first, since the rewrite destroys what is left of the damaged part.
            lost_found::keep_copy(disk, dir, &log.path(*number))?;
            log.rewrite(*number, rewrite)?;
        }
        lost_found::keep(disk, dir, &dir.join(LOG), &plan.behind)?;
        self.report.lost.extend(plan.lost);
        Ok(())
    }
}
