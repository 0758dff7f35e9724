//! Radix stores as `terrane verify` checks them, and as `terrane inspect` shows them.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use terrane::context::radix::{self, Store};
use terrane::io::{Disk, RealDisk};
use terrane::{btree, verify};
use terrane_bench::error::Class;
use terrane_bench::meter;
use terrane_bench::radix_store::{self, BackEnd, Marker, database_path};

use crate::back_ends::RedisArgs;
use crate::exit::Failure;
use crate::output::{self, bytes};
use crate::progress::ByteBar;
use crate::text::{count_of, grouped};

#[derive(Serialize)]
struct Problem {
    /// The file, or the directory where none is known.
    file: String,
    /// A place in the file, or in the state.
    place: Option<String>,
    rule: String,
}

#[derive(Serialize, Default)]
struct Checked {
    backend: Option<&'static str>,
    problems: Vec<Problem>,
    repaired: u64,
    left: u64,
    trees: u64,
    versions: u64,
    nodes: u64,
    wall_s: f64,
}

/// Checks the store in a directory, writes the report and returns the exit code.
pub(crate) fn verify(
    dir: &Path,
    redis: &RedisArgs,
    repair: bool,
    (json, quiet): (bool, bool),
) -> Result<u8, Failure> {
    if repair {
        let database = database_path(dir);
        let (dir, database) = (dir.display(), database.display());
        return Err(Failure::usage(format!(
            "{dir} is a radix store: with back-end lsm or btree repair {database}; of others restore a copy"
        )));
    }
    let started = Instant::now();
    let mut checked = Checked::default();
    match checked.check(dir, redis, quiet) {
        Err(error) if error.class() == Class::Check => {
            let failure = Failure::from(error);
            checked.note(dir, None, failure.message());
        }
        outcome => outcome?,
    }
    checked.left = checked.problems.len() as u64;
    checked.wall_s = started.elapsed().as_secs_f64();
    let failure = (checked.left > 0).then(|| {
        let left = count_of(checked.left, "problem is", "problems are");
        Failure::check(format!("{}: {left} left", dir.display()))
    });
    output::checked("verify", json, &checked, &checked.text(), failure.as_ref())
}

impl Checked {
    fn note(&mut self, file: &Path, place: Option<String>, rule: impl Into<String>) {
        let file = file.display().to_string();
        self.problems.push(Problem { file, place, rule: rule.into() });
    }

    /// What the back-end can say of its files, then what the state says of its rows. Damage of which a call fails is the
    /// caller's to note.
    fn check(&mut self, dir: &Path, redis: &RedisArgs, quiet: bool) -> radix_store::Result<()> {
        let marker = match Marker::read(dir) {
            // An interrupted creation, in which there is nothing to check.
            Err(radix_store::Error::Unfinished { .. }) => return Ok(()),
            marker => marker?,
        };
        self.backend = Some(marker.back_end.name());
        let database = database_path(dir);
        if database.exists() {
            self.check_files(&database, marker.back_end, quiet);
        }
        let store = redis.reading().open(dir)?;
        let report = store.verify();
        let trees = store.trees();
        store.close()?;
        let (report, trees) = (report?, trees?);
        for radix::Problem { place, rule } in report.problems {
            self.note(&database, Some(place), rule);
        }
        (self.trees, self.versions, self.nodes) =
            (trees.len() as u64, report.versions, report.nodes);
        Ok(())
    }

    /// The checks of our engines, which know their files. What makes them fail also makes the store fail to open, which tells it.
    fn check_files(&mut self, database: &Path, back_end: BackEnd, quiet: bool) {
        let disk: Arc<dyn Disk> = RealDisk::auto();
        let mut bar = ByteBar::new("checking", quiet);
        let mut progress = |done, total| bar.set(done, total);
        match back_end {
            BackEnd::Lsm => {
                let report = verify::verify(&disk, database, &mut progress);
                for problem in report.map(|report| report.problems).unwrap_or_default() {
                    let place = format!("offset {}", problem.offset);
                    self.note(&problem.path, Some(place), problem.rule);
                }
            }
            BackEnd::Btree => {
                let report = btree::check(&disk, database, &mut progress);
                for problem in report.map(|report| report.problems).unwrap_or_default() {
                    self.note(&problem.path, None, problem.what.to_string());
                }
            }
            _ => {}
        }
    }

    fn text(&self) -> String {
        let line = |problem: &Problem| {
            let place = problem.place.as_ref().map_or(String::new(), |place| format!(": {place}"));
            format!("{}{place}: {}", problem.file, problem.rule)
        };
        let mut lines: Vec<String> = self.problems.iter().map(line).collect();
        let checked = [
            count_of(self.trees, "tree", "trees"),
            count_of(self.versions, "version", "versions"),
            count_of(self.nodes, "node", "nodes"),
        ];
        let outcome = match self.left {
            0 => "no problem".to_owned(),
            left => count_of(left, "problem", "problems"),
        };
        lines.push(format!("checked {} in {:.3} s: {outcome}", checked.join(", "), self.wall_s));
        lines.join("\n")
    }
}

/// A radix store.
#[derive(Serialize)]
pub(crate) struct Described {
    path: String,
    format_version: u32,
    backend: Option<&'static str>,
    redis_urls: Vec<String>,
    redis_prefix: Option<String>,
    store_bytes: u64,
    /// Null where another process has the store.
    state: Option<State>,
}

#[derive(Serialize)]
struct State {
    scheme: &'static str,
    disk_bytes: u64,
    trees: Vec<TreeInfo>,
}

#[derive(Serialize)]
struct TreeInfo {
    name: String,
    versions: u64,
    newest_version: Option<u64>,
    newest_root: Option<String>,
}

impl Described {
    pub(crate) fn read(dir: &Path, redis: &RedisArgs) -> Result<Self, Failure> {
        let marker = match Marker::read(dir) {
            Err(radix_store::Error::Unfinished { .. }) => None,
            marker => Some(marker?),
        };
        let failed = |error| Failure::environment(format!("{}: {error}", dir.display()));
        let store_bytes = meter::store_bytes(dir).map_err(failed)?;
        let state = match &marker {
            None => None,
            Some(_) => match redis.reading().open(dir) {
                Err(error) if error.is_in_use() => None,
                store => Some(State::of(&*store?)?),
            },
        };
        let redis = marker.as_ref().and_then(|marker| marker.redis.clone());
        Ok(Self {
            path: dir.display().to_string(),
            format_version: radix_store::MARKER_VERSION,
            backend: marker.map(|marker| marker.back_end.name()),
            redis_urls: redis.clone().map(|redis| redis.urls).unwrap_or_default(),
            redis_prefix: redis.map(|redis| redis.prefix),
            store_bytes,
            state,
        })
    }

    pub(crate) fn text(&self) -> String {
        let mut lines = vec![
            ("radix store", self.path.clone()),
            ("back-end", self.backend.unwrap_or("none yet: its making was interrupted").to_owned()),
        ];
        if let Some(prefix) = &self.redis_prefix {
            lines.push(("servers", self.redis_urls.join(", ")));
            lines.push(("prefix", prefix.clone()));
        }
        lines.push(("files", bytes(self.store_bytes)));
        match &self.state {
            Some(state) => {
                lines.push(("scheme", state.scheme.to_owned()));
                lines.push(("data", bytes(state.disk_bytes)));
                lines.push(("trees", grouped(state.trees.len() as u64)));
                for tree in &state.trees {
                    let newest = tree.newest_root.as_ref();
                    let newest = newest.map_or(String::new(), |root| format!(", newest {root}"));
                    let versions = count_of(tree.versions, "version", "versions");
                    lines.push(("tree", format!("{}: {versions}{newest}", tree.name)));
                }
            }
            None if self.backend.is_some() => {
                lines.push(("trees", "unknown: another process has the store".to_owned()));
            }
            None => {}
        }
        output::aligned(&lines)
    }
}

impl State {
    fn of(store: &Store) -> Result<Self, Failure> {
        let mut trees = Vec::new();
        for name in store.trees()? {
            let versions = store.tree(&name)?.versions()?;
            let newest = versions.last();
            trees.push(TreeInfo {
                name,
                versions: versions.len() as u64,
                newest_version: newest.and_then(|version| version.id.to_string().parse().ok()),
                newest_root: newest.map(|version| version.root.to_string()),
            });
        }
        let disk_bytes = store.database().disk_bytes()?;
        store.close()?;
        Ok(Self { scheme: radix::SCHEME, disk_bytes, trees })
    }
}
