//! Radix stores as `terrane inspect` shows them.

use std::path::Path;

use serde::Serialize;
use terrane::radix::{self, Store};
use terrane::state_dir::{self, Marker};
use terrane_bench::instruments::meter;

use crate::commands::radix::{self as radix_command, Listed};
use crate::stores::back_ends::ServerArgs;
use crate::ui::exit::Failure;
use crate::ui::output::{self, bytes};
use crate::ui::text::{count_of, grouped};

/// Report of a radix store.
#[derive(Serialize)]
pub(crate) struct RadixStoreInfo {
    path: String,
    format_version: u32,
    backend: Option<&'static str>,
    redis_urls: Vec<String>,
    redis_prefix: Option<String>,
    cassandra_url: Option<String>,
    cassandra_store: Option<String>,
    store_bytes: u64,
    /// Null if another process has the store open.
    state: Option<TreesInfo>,
}

#[derive(Serialize)]
struct TreesInfo {
    scheme: &'static str,
    disk_bytes: u64,
    trees: Vec<Listed>,
}

impl RadixStoreInfo {
    pub(crate) fn read(dir: &Path, servers: &ServerArgs) -> Result<Self, Failure> {
        let marker = match Marker::read(dir) {
            Err(state_dir::Error::Unfinished { .. }) => None,
            marker => Some(marker?),
        };

        let failed = |error| Failure::environment(format!("{}: {error}", dir.display()));
        let store_bytes = meter::store_bytes(dir).map_err(failed)?;
        let state = match &marker {
            None => None,
            Some(_) => match servers.reading().open(dir) {
                Err(error) if error.is_in_use() => None,
                store => Some(TreesInfo::of(&*store?)?),
            },
        };

        let redis = marker.as_ref().and_then(|marker| marker.redis.clone());
        let cassandra = marker.as_ref().and_then(|marker| marker.cassandra.clone());

        Ok(Self {
            path: dir.display().to_string(),
            format_version: state_dir::MARKER_VERSION,
            backend: marker.map(|marker| marker.back_end.name()),
            redis_urls: redis.clone().map(|redis| redis.urls).unwrap_or_default(),
            redis_prefix: redis.map(|redis| redis.prefix),
            cassandra_url: cassandra.clone().map(|cassandra| cassandra.url),
            cassandra_store: cassandra.and_then(|cassandra| cassandra.store),
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

        if let (Some(url), Some(store)) = (&self.cassandra_url, &self.cassandra_store) {
            lines.push(("cluster", url.clone()));
            lines.push(("store", store.clone()));
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

impl TreesInfo {
    fn of(store: &Store) -> Result<Self, Failure> {
        let trees = radix_command::list(store)?;
        let disk_bytes = store.database().disk_bytes()?;
        store.close()?;
        Ok(Self { scheme: radix::SCHEME, disk_bytes, trees })
    }
}
