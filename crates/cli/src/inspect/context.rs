//! Context stores as `terrane inspect` shows them.

use std::path::{Path, PathBuf};

use serde::Serialize;
use terrane::context::{self, Hash, Indexing, Scheme, Tree};
use terrane::io::{Disk as _, RealDisk};
use terrane_bench::workloads::context::report::FilesReport;

use crate::commands::context::{PAGE, ROOT, checkout, open, store_bytes};
use crate::ui::exit::Failure;
use crate::ui::literal;
use crate::ui::output::{self, bytes};
use crate::ui::text::{count_of, grouped};

/// Report of a context store, and of the tree of one commit.
#[derive(Serialize)]
pub(crate) struct ContextStoreInfo {
    path: String,
    scheme: &'static str,
    branching: u32,
    flat_limit: u32,
    indexing: &'static str,
    commits: u64,
    newest: Option<String>,
    branches: Vec<Branch>,
    chunks: u64,
    chunk_bytes: u64,
    index_bytes: u64,
    /// Directory of the index, if it is outside the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    index_dir: Option<String>,
    volumes: usize,
    archive_bytes: u64,
    /// Directory of the volumes, if it is outside the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    archive_dir: Option<String>,
    other_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tree: Option<TreeSums>,
}

#[derive(Serialize)]
struct Branch {
    name: String,
    head: String,
}

/// Sums over a tree.
#[derive(Serialize, Default)]
struct TreeSums {
    commit: String,
    directories: u64,
    values: u64,
    value_bytes: u64,
    value_bytes_max: u64,
    depth_max: u64,
    children_max: u64,
}

impl TreeSums {
    /// Adds a directory and all below it.
    fn add(&mut self, dir: &Tree, depth: u64) -> Result<(), Failure> {
        self.directories += 1;
        self.depth_max = self.depth_max.max(depth);
        self.children_max = self.children_max.max(dir.length(&ROOT)?);
        let mut offset = 0;

        loop {
            let page = dir.list(&ROOT, offset, PAGE)?;
            if page.is_empty() {
                return Ok(());
            }
            offset += page.len();

            for (_, tree) in page {
                let Some(value) = tree.to_value()? else {
                    self.add(&tree, depth + 1)?;
                    continue;
                };
                let bytes = value.len() as u64;
                self.values += 1;
                self.value_bytes += bytes;
                self.value_bytes_max = self.value_bytes_max.max(bytes);
                self.depth_max = self.depth_max.max(depth + 1);
            }
        }
    }
}

impl ContextStoreInfo {
    /// Reads the store, and the whole tree of a commit if `at` names one.
    pub(crate) fn read(dir: &Path, at: Option<&str>) -> Result<Self, Failure> {
        let store = open(dir)?;
        let rules = store.rules();
        let files = FilesReport::of(dir)
            .map_err(|error| Failure::environment(format!("{}: {error}", dir.display())))?;

        // Index and archive may be elsewhere; their bytes are not among those of the store then.
        let home = RealDisk::auto().absolute(dir).map_err(context::Error::from)?;
        let elsewhere = |path: PathBuf, name: &str| (path != home.join(name)).then_some(path);
        let index_dir = elsewhere(store.index_dir(), "index");
        let archive_dir = elsewhere(store.archive_dir(), "archive");
        let bytes_of = |path: &PathBuf| if path.is_dir() { store_bytes(path) } else { Ok(0) };
        let index_bytes = index_dir.as_ref().map_or(Ok(files.index_bytes), bytes_of)?;

        let archive_bytes = match &archive_dir {
            Some(_) => store.volumes().iter().map(bytes_of).sum::<Result<u64, Failure>>()?,
            None => files.archive_bytes,
        };

        let shown = |path: PathBuf| path.display().to_string();

        let mut commits = 0;
        let mut newest = None;
        for commit in store.newest() {
            let commit = commit?;
            commits += 1;
            newest = newest.or(Some(commit.hash.to_base58()));
        }

        let branch = |(name, head): (Vec<u8>, Hash)| Branch {
            name: literal::shown(&name),
            head: head.to_base58(),
        };

        let mut tree = None;
        if at.is_some() {
            let (commit, context) = checkout(&store, at)?;
            let mut sums = TreeSums { commit: commit.to_base58(), ..TreeSums::default() };
            sums.add(context.tree(), 0)?;
            tree = Some(sums);
        }

        Ok(Self {
            path: dir.display().to_string(),
            scheme: match rules.scheme {
                Scheme::Tezos => "tezos",
                Scheme::Blake3 => "blake3",
            },
            branching: rules.branching,
            flat_limit: rules.flat_limit,
            indexing: match store.indexing() {
                Indexing::Minimal => "minimal",
                Indexing::Always => "always",
            },
            commits,
            newest,
            branches: store.branches().into_iter().map(branch).collect(),
            chunks: files.chunks,
            chunk_bytes: files.chunk_bytes,
            index_bytes,
            index_dir: index_dir.map(shown),
            volumes: store.volumes().len(),
            archive_bytes,
            archive_dir: archive_dir.map(shown),
            other_bytes: files.other_bytes,
            tree,
        })
    }

    pub(crate) fn text(&self) -> String {
        let rules = format!(
            "{}, branching {}, flat up to {}",
            self.scheme, self.branching, self.flat_limit
        );

        let chunks = format!("{} in {}", bytes(self.chunk_bytes), grouped(self.chunks));
        let place = |dir: Option<&String>| dir.map_or(String::new(), |dir| format!(", in {dir}"));

        let mut lines = vec![
            ("context store", self.path.clone()),
            ("rules", rules),
            ("indexing", self.indexing.to_owned()),
            ("commits", grouped(self.commits)),
            ("newest", self.newest.clone().unwrap_or("none".to_owned())),
            ("chunks", chunks),
            ("index", format!("{}{}", bytes(self.index_bytes), place(self.index_dir.as_ref()))),
        ];

        if self.volumes > 0 {
            let volumes = count_of(self.volumes as u64, "volume", "volumes");
            let place = place(self.archive_dir.as_ref());
            lines.push(("archive", format!("{} in {volumes}{place}", bytes(self.archive_bytes))));
        }

        let heads = self.branches.iter().map(|Branch { name, head }| format!("{name} at {head}"));
        lines.extend(heads.map(|head| ("branch", head)));

        if let Some(tree) = &self.tree {
            let values = format!(
                "{}, {} in all, the longest {}",
                grouped(tree.values),
                bytes(tree.value_bytes),
                bytes(tree.value_bytes_max)
            );

            let directories = format!(
                "{}, the widest has {}",
                grouped(tree.directories),
                count_of(tree.children_max, "child", "children")
            );

            lines.extend([
                ("tree of", tree.commit.clone()),
                ("values", values),
                ("directories", directories),
                ("depth", tree.depth_max.to_string()),
            ]);
        }

        output::aligned(&lines)
    }
}
