//! Options of an SQLite database: their choices, their limits, and the guarantee they give.

use std::path::{Path, PathBuf};
use std::time::Duration;

use terrane_kv::{Durability, Error, Guarantee, PowerLoss, Result, is_index_name};

use super::error::{NAME, back_end_error};
use crate::own_file::{OwnFiles, with_suffix};

pub(super) const FILES: OwnFiles = OwnFiles(NAME);

/// Longest busy timeout that SQLite takes.
const BUSY_TIMEOUT_MAX: Duration = Duration::from_millis(i32::MAX as u64);

/// Default number of connections kept for snapshots, as in Transact.
pub(super) const POOL_DEFAULT: usize = 10;

/// Location of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SqlitePlace {
    /// In a file.
    File(PathBuf),
    /// In memory; gone when the database is closed.
    Memory,
}

/// Journal that makes a commit atomic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JournalMode {
    /// Old pages in a file that is deleted.
    Delete,
    /// Old pages in a file that is cut.
    Truncate,
    /// Old pages in a file whose head is cleared.
    Persist,
    /// Old pages in memory: a kill within a commit may damage the file.
    Memory,
    /// New pages in a log.
    Wal,
    /// Not at all; see [`SqliteOptions::unsafe_journal_off`].
    Off,
}

impl JournalMode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Truncate => "truncate",
            Self::Persist => "persist",
            Self::Memory => "memory",
            Self::Wal => "wal",
            Self::Off => "off",
        }
    }
}

/// Syncs of SQLite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Synchronous {
    /// Never.
    Off = 0,
    /// At the critical moments.
    Normal = 1,
    /// At each commit.
    Full = 2,
    /// At each commit, the directory too.
    Extra = 3,
}

/// Reuse of free pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AutoVacuum {
    /// Commits use them again; [`Database::compact`](terrane_kv::Database::compact) copies the
    /// whole file.
    None = 0,
    /// Each commit gives them back.
    Full = 1,
    /// [`Database::compact`](terrane_kv::Database::compact) gives them back, without a copy.
    Incremental = 2,
}

/// Reaction to WAL mode on a network file system, where it does not work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NetworkWal {
    /// Refuse to open.
    #[default]
    Refuse,
    /// Use [`JournalMode::Delete`] there.
    FallBack,
}

/// Options of an SQLite database.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SqliteOptions {
    /// Location.
    pub place: SqlitePlace,
    /// Whether to create a missing file.
    pub create: bool,
    /// Prefix of the names of tables, in the form of an index's name.
    pub table_prefix: String,
    /// Connections that are kept for snapshots; with more snapshots more are opened. `None`: 10, or
    /// 1 without a log, where there is no more than that.
    pub pool: Option<usize>,
    /// Bytes of the file that are read through a memory map.
    pub mmap_bytes: u64,
    /// Bytes of a page, of a file that is made: a power of two, 512 to 65,536. `None`: 4,096, or
    /// what the file has.
    pub page_bytes: Option<u32>,
    /// Bytes of the cache of each connection.
    pub cache_bytes: u64,
    /// Journal that makes a commit atomic.
    pub journal_mode: JournalMode,
    /// How much is synced.
    pub synchronous: Synchronous,
    /// How long to wait for locks of other processes.
    pub busy_timeout: Duration,
    /// Pages of the log after which a commit takes it into the file; 0: never. `None`: 1,000.
    pub checkpoint_pages: Option<u32>,
    /// Reuse of free pages in a new file. `None`: [`AutoVacuum::None`], or the setting of the file.
    pub auto_vacuum: Option<AutoVacuum>,
    /// Pages of the file at most.
    pub pages_max: Option<u32>,
    /// Reaction to WAL mode on a network file system.
    pub network_wal: NetworkWal,
    /// Allows [`JournalMode::Off`]: a kill, or an error within a commit, may leave a file that
    /// cannot be read.
    pub unsafe_journal_off: bool,
}

/// Mode of reading a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// Other processes may write it.
    Shared,
    /// Nobody writes it, and SQLite writes nothing beside it.
    Immutable,
}

impl SqliteOptions {
    /// A file, with a log that is synced at each commit.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self {
            place: SqlitePlace::File(path.into()),
            create: true,
            table_prefix: "terrane".into(),
            pool: None,
            mmap_bytes: 100 << 20,
            page_bytes: None,
            cache_bytes: 8 << 20,
            journal_mode: JournalMode::Wal,
            synchronous: Synchronous::Full,
            busy_timeout: Duration::from_secs(5),
            checkpoint_pages: None,
            auto_vacuum: None,
            pages_max: None,
            network_wal: NetworkWal::Refuse,
            unsafe_journal_off: false,
        }
    }

    /// In memory.
    pub fn memory() -> Self {
        Self {
            place: SqlitePlace::Memory,
            mmap_bytes: 0,
            journal_mode: JournalMode::Memory,
            synchronous: Synchronous::Off,
            ..Self::file("")
        }
    }

    terrane_io::setters! {
        place: SqlitePlace,
        create: bool,
        table_prefix: impl Into<String>,
        pool: impl Into<Option<usize>>,
        mmap_bytes: u64,
        page_bytes: impl Into<Option<u32>>,
        cache_bytes: u64,
        journal_mode: JournalMode,
        synchronous: Synchronous,
        busy_timeout: Duration,
        checkpoint_pages: impl Into<Option<u32>>,
        auto_vacuum: impl Into<Option<AutoVacuum>>,
        pages_max: impl Into<Option<u32>>,
        network_wal: NetworkWal,
        unsafe_journal_off: bool,
    }

    /// The mode in which an existing file can be read.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is a log that cannot be read without writing beside it;
    /// those of the system.
    pub(super) fn reading(&self) -> Result<Reading> {
        let SqlitePlace::File(path) = &self.place else {
            let why = "the database is in memory: nobody else can have written it".to_owned();
            return Err(Error::Unsupported { back_end: NAME, option: "place".into(), why });
        };

        let path = FILES.canonical(path)?;
        if !FILES.check(&path)? {
            let error = std::io::Error::from(std::io::ErrorKind::NotFound);
            return Err(back_end_error("open", error));
        }

        // A log without bytes has nothing that a reader would miss.
        let has_bytes = |suffix| match with_suffix(&path, suffix).metadata() {
            Ok(metadata) => Ok(metadata.len() > 0),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(back_end_error("stat", error)),
        };
        let can_write = FILES.can_write(path.parent().unwrap_or(Path::new("/")))?;
        let has_log = has_bytes("-wal")? || has_bytes("-journal")?;

        // Where nothing can be written, a log can be read only through shared memory that is there.
        match (can_write, has_log) {
            (true, _) => Ok(Reading::Shared),
            (false, false) => Ok(Reading::Immutable),
            (false, true) if FILES.check(&with_suffix(&path, "-shm"))? => Ok(Reading::Shared),
            (false, true) => {
                let why = format!(
                    "{} has a log that cannot be read without writing beside it: copy all its files to a directory that can \
                     be written",
                    path.display()
                );
                Err(Error::Unsupported { back_end: NAME, option: "path".into(), why })
            }
        }
    }

    pub(super) fn is_wal(&self) -> bool {
        self.journal_mode == JournalMode::Wal
    }

    /// The options that take effect, or why some cannot.
    pub(super) fn resolved(&self) -> Result<Self> {
        let refuse = |option: &str, why: &str| {
            Err(Error::Unsupported { back_end: NAME, option: option.into(), why: why.into() })
        };

        let mut options = self.clone();
        // Table names cannot be bound as parameters, so the prefix goes into the SQL text.
        if !is_index_name(&options.table_prefix) {
            return refuse("table_prefix", "take lower-case letters, digits and _, a letter first");
        }

        if options.journal_mode == JournalMode::Off && !options.unsafe_journal_off {
            return refuse(
                "journal_mode",
                "OFF cannot take a transaction back and leaves damage after a kill; set unsafe_journal_off if that will do",
            );
        }

        if options.busy_timeout > BUSY_TIMEOUT_MAX {
            return refuse("busy_timeout", "SQLite counts to 2,147,483,647 milliseconds");
        }

        if !options.busy_timeout.subsec_nanos().is_multiple_of(1_000_000) {
            return refuse("busy_timeout", "SQLite counts milliseconds");
        }

        if !options.cache_bytes.is_multiple_of(1024) || options.cache_bytes / 1024 > i32::MAX as u64
        {
            return refuse("cache_bytes", "SQLite counts KiB, to 2,147,483,647");
        }

        if i64::try_from(options.mmap_bytes).is_err() {
            return refuse("mmap_bytes", "more than SQLite can map");
        }

        match &options.place {
            SqlitePlace::Memory => {
                if options.mmap_bytes != 0 {
                    return refuse("mmap_bytes", "there is no file to map; take 0");
                }
            }
            SqlitePlace::File(path) => {
                let path = FILES.canonical(path)?;
                // SQLite writes beside the file, so all of these names are checked.
                for suffix in ["", "-wal", "-shm", "-journal"] {
                    FILES.check(&with_suffix(&path, suffix))?;
                }
                options.place = SqlitePlace::File(path.clone());
                let path = &path;
                let file_system = network_file_system(path)?;
                options.journal_mode =
                    journal_on(options.journal_mode, file_system, options.network_wal)?;
            }
        }

        // Only a log lets several connections work at once.
        if !options.is_wal() {
            if options.pool.is_some_and(|pool| pool > 1) {
                return refuse("pool", "without a log there is one connection; take 1 or WAL");
            }
            if options.checkpoint_pages.is_some() {
                return refuse("checkpoint_pages", "without a log there is nothing to take over");
            }
        }

        Ok(options)
    }

    pub(super) fn guarantee(&self) -> Guarantee {
        let every =
            (Durability::Each, PowerLoss::EveryCommit, "every commit survives a loss of power");
        let nothing = (Durability::None, PowerLoss::NoPromise, "a loss of power may leave damage");
        let memory = matches!(self.place, SqlitePlace::Memory);
        // Without a journal on disk a commit that a kill cuts off cannot be taken back.
        let survives_kill =
            !memory && !matches!(self.journal_mode, JournalMode::Memory | JournalMode::Off);
        let (durability, power_loss, what) = match (self.journal_mode, self.synchronous) {
            _ if memory => (
                Durability::None,
                PowerLoss::NoPromise,
                "the database is in memory and gone with the process",
            ),
            (JournalMode::Memory | JournalMode::Off, synchronous) => (
                match synchronous {
                    Synchronous::Off => Durability::None,
                    _ => Durability::Buffered,
                },
                PowerLoss::NoPromise,
                "a kill or a loss of power within a commit may leave damage",
            ),
            (_, Synchronous::Off) => nothing,
            (JournalMode::Wal, Synchronous::Normal) => (
                Durability::Buffered,
                PowerLoss::Consistent,
                "consistent after a loss of power; commits since the last sync of the log may be lost",
            ),
            (JournalMode::Wal, _) => every,
            (_, Synchronous::Normal) => (
                Durability::Buffered,
                PowerLoss::NoPromise,
                "nearly always consistent after a loss of power; some file systems may leave damage",
            ),
            (JournalMode::Delete, Synchronous::Full) => (
                Durability::Buffered,
                PowerLoss::Consistent,
                "synced at each commit and consistent after a loss of power; the last commit may be undone, since the \
                 directory is not synced after it (EXTRA does)",
            ),
            (JournalMode::Delete | JournalMode::Truncate | JournalMode::Persist, _) => every,
        };

        let text = format!(
            "SQLite, journal {}, synchronous {}: {what}",
            self.journal_mode.name(),
            format!("{:?}", self.synchronous).to_lowercase()
        );
        Guarantee { durability, survives_kill, power_loss, text }
    }

    /// Syncs of a small commit, as they were seen in traces of system calls.
    pub(super) fn syncs_per_commit(&self) -> u64 {
        if matches!(self.place, SqlitePlace::Memory) || self.synchronous == Synchronous::Off {
            return 0;
        }

        let is_normal = self.synchronous == Synchronous::Normal;
        match self.journal_mode {
            // The log.
            JournalMode::Wal => u64::from(!is_normal),
            // The file.
            JournalMode::Memory | JournalMode::Off => 1,
            // The journal, the directory with its name, the file; from FULL on the journal twice;
            // with EXTRA the directory without its name.
            JournalMode::Delete => match self.synchronous {
                Synchronous::Off | Synchronous::Normal => 3,
                Synchronous::Full => 4,
                Synchronous::Extra => 5,
            },
            // The journal, its directory, the file, and the journal's end or head; from FULL on the
            // journal twice.
            JournalMode::Truncate => {
                if is_normal {
                    3
                } else {
                    5
                }
            }
            JournalMode::Persist => {
                if is_normal {
                    4
                } else {
                    5
                }
            }
        }
    }
}

/// The name of the network file system that a path is on, if it is on one.
fn network_file_system(path: &Path) -> Result<Option<&'static str>> {
    // A bare file name has an empty parent.
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let status = rustix::fs::statfs(folder).map_err(|error| back_end_error("statfs", error))?;
    Ok(network_name(status.f_type as u64))
}

/// The name of a file system that other hosts share, by the number that `statfs` gives for it.
fn network_name(magic: u64) -> Option<&'static str> {
    // The number of a file system has 32 bits; some systems extend its sign.
    Some(match magic & 0xFFFF_FFFF {
        0x6969 => "NFS",
        0x517B => "SMB",
        0xFF53_4D42 => "CIFS",
        0xFE53_4D42 => "SMB2",
        0x5346_414F | 0x6B41_4653 => "AFS",
        0x00C3_6400 => "Ceph",
        0x0102_1997 => "9P",
        0x0116_1970 => "GFS2",
        0x7461_636F => "OCFS2",
        0x0BD0_0BD0 => "Lustre",
        0x4750_4653 => "GPFS",
        0x7375_7245 => "Coda",
        0x564C => "NCP",
        _ => return None,
    })
}

/// The journal to use on a file system.
fn journal_on(
    asked: JournalMode,
    network: Option<&'static str>,
    network_wal: NetworkWal,
) -> Result<JournalMode> {
    match (asked, network, network_wal) {
        (JournalMode::Wal, Some(network), NetworkWal::Refuse) => Err(Error::Unsupported {
            back_end: NAME,
            option: "journal_mode".into(),
            why: format!(
                "WAL needs memory that all users of the file share, which {network} does not give; take DELETE, or have \
                 it taken by NetworkWal::FallBack"
            ),
        }),
        (JournalMode::Wal, Some(_), NetworkWal::FallBack) => Ok(JournalMode::Delete),
        _ => Ok(asked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_on_a_network_file_system_is_refused_unless_told_to_fall_back() {
        let nfs = network_name(0x6969);
        assert_eq!(nfs, Some("NFS"));
        assert_eq!(network_name(0xEF53), None, "ext4");

        let on = |asked, network, policy| journal_on(asked, network, policy);
        assert!(matches!(
            on(JournalMode::Wal, nfs, NetworkWal::Refuse),
            Err(Error::Unsupported { option, .. }) if option == "journal_mode"
        ));

        let fallen_back = on(JournalMode::Wal, nfs, NetworkWal::FallBack).unwrap();
        assert_eq!(fallen_back, JournalMode::Delete);
        let local = on(JournalMode::Wal, None, NetworkWal::Refuse).unwrap();
        assert_eq!(local, JournalMode::Wal);
        let kept = on(JournalMode::Persist, nfs, NetworkWal::Refuse).unwrap();

        assert_eq!(kept, JournalMode::Persist);
    }
}
