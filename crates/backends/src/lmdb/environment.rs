//! Open environment: its tables, and the growth of its map.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use terrane_kv::overlay::names::IndexNames;
use terrane_kv::{Error, INDEXES_MAX, Result};
use terrane_lmdb::{
    EnvFlags, Environment, EnvironmentAccess, EnvironmentOptions, EnvironmentTable, Failure, Kind,
};

use super::failure::{NAME, error_of, full};
use super::options::{LmdbGrowth, LmdbOptions, round_down, round_up};

/// Name of the main table.
pub(super) const MAIN: &str = "main";
/// Beginning of the names of indexes.
pub(super) const INDEX: &str = "index_";

/// An environment and its tables, the main table first.
#[derive(Debug, Clone)]
pub(super) struct Open {
    pub(super) environment: Environment,
    pub(super) tables: Arc<[EnvironmentTable]>,
}

/// Names of the main table and the indexes in LMDB.
pub(super) fn table_names(indexes: &IndexNames) -> Vec<String> {
    let indexes = indexes.iter().map(|name| format!("{INDEX}{name}"));
    std::iter::once(MAIN.to_owned()).chain(indexes).collect()
}

pub(super) fn open_to_read(
    path: &Path,
    indexes: &IndexNames,
    options: &LmdbOptions,
    access: EnvironmentAccess,
) -> Result<Open> {
    let environment = environment(path, options, access)?;

    let names = table_names(indexes);
    let found = environment.tables(&names).map_err(|failure| error_of("open tables", failure))?;
    let tables: Result<Vec<EnvironmentTable>> = names
        .into_iter()
        .zip(found)
        .map(|(name, table)| {
            let why = "the database has no such table, and is open for reading only".to_owned();
            table.ok_or(Error::Unsupported { back_end: NAME, option: name, why })
        })
        .collect();

    Ok(Open { environment, tables: tables?.into() })
}

fn environment(
    path: &Path,
    options: &LmdbOptions,
    access: EnvironmentAccess,
) -> Result<Environment> {
    let environment_options = EnvironmentOptions {
        access,
        map_bytes: options.start_bytes() as usize,
        readers_max: options.readers_max,
        tables_max: INDEXES_MAX as u32 + 1,
        directory: options.directory,
        read_ahead: options.read_ahead,
        write_map: options.write_map,
        sync: options.sync,
    };
    Environment::open(path, &environment_options).map_err(|failure| error_of("open", failure))
}

pub(super) fn open_environment(
    path: &Path,
    indexes: &IndexNames,
    options: &LmdbOptions,
) -> Result<Open> {
    let environment = environment(path, options, EnvironmentAccess::Write)?;
    let names = table_names(indexes);
    // All tables come in one transaction, so that a crash leaves all or none of them.
    let make = || {
        let mut transaction = environment.transaction()?;
        let tables: std::result::Result<Vec<_>, Failure> =
            names.iter().map(|name| transaction.table(name)).collect();
        let tables = tables?;
        transaction.commit()?;
        Ok(tables)
    };

    let tables = loop {
        match make() {
            Ok(tables) => break tables,
            // The new tables may not fit into the map.
            Err(Failure { kind: Kind::MapFull, .. }) => {
                grow(&environment, options, options.soft_bytes(), None)?;
            }
            Err(failure) => return Err(error_of("open tables", failure)),
        }
    };

    Ok(Open { environment, tables: tables.into() })
}

/// Settings that LMDB reports.
pub(super) fn settings_of(environment: &Environment) -> Vec<(&'static str, String)> {
    let mut settings = vec![
        ("map_bytes", environment.map_bytes().to_string()),
        ("used_bytes", environment.used_bytes().to_string()),
        ("readers_max", environment.readers_max().to_string()),
    ];

    if let Ok(flags) = environment.flags() {
        let sync = if flags.contains(EnvFlags::NO_SYNC) {
            "none"
        } else if flags.contains(EnvFlags::MAP_ASYNC) {
            "map-async"
        } else if flags.contains(EnvFlags::NO_META_SYNC) {
            "no-meta"
        } else {
            "full"
        };

        settings.extend([
            ("sync", sync.to_owned()),
            ("write_map", flags.contains(EnvFlags::WRITE_MAP).to_string()),
            ("directory", (!flags.contains(EnvFlags::NO_SUB_DIR)).to_string()),
            ("read_ahead", (!flags.contains(EnvFlags::NO_READ_AHEAD)).to_string()),
        ]);
    }

    settings
}

/// Makes the map larger, up to `bytes_max`.
pub(super) fn grow(
    environment: &Environment,
    options: &LmdbOptions,
    bytes_max: u64,
    oldest_reader: Option<Duration>,
) -> Result<()> {
    let bytes = environment.map_bytes();
    let larger = match options.growth {
        LmdbGrowth::None => bytes_max,
        LmdbGrowth::Double => 2 * bytes,
        LmdbGrowth::Step(step) => round_up(bytes.saturating_add(step)),
    };

    // Rounded down, so that the map stays within its limit.
    let larger = round_down(larger.min(bytes_max));
    // A map that cannot grow is full, perhaps because an old reader keeps freed pages.
    if larger <= bytes {
        let reader = oldest_reader.map_or_else(String::new, |age| {
            format!("; the oldest reader is {age:.1?} old and keeps freed pages from use")
        });
        return Err(full(
            format!("the map has {bytes} bytes, of at most {}{reader}", options.map_bytes_max),
            None,
        ));
    }

    debug_assert!(bytes < larger && larger <= bytes_max, "the map grows within its limit");
    environment.resize(larger).map_err(|failure| error_of("grow the map", failure))
}
