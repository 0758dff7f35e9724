//! Radix stores by the names of their back-ends, and directories that say what they are.
//!
//! A directory holds one store:
//!
//! | name               | is                                                                            |
//! |--------------------|-------------------------------------------------------------------------------|
//! | `radix-store`      | the marker: which back-end, and of a server where it is                       |
//! | `radix-store.new`  | the marker while the store is being made                                      |
//! | `radix-store.lock` | held by the process that has the store, whose number it has                   |
//! | `database`         | what the back-end keeps: a directory, or a file with others beside it         |
//!
//! The marker is text, lines that end with a line feed: the magic, the version and the back-end; of Redis the prefix of
//! the keys and the URLs of its servers, without users and passwords; and last the checksum, CRC-32C of all before its line.
//! `docs/format/radix-marker.md` has it in full.
//!
//! Invariant: where `radix-store` stands, the database has been made. A directory that has only `radix-store.new` is what an
//! interrupted creation left: it holds nothing, and whoever makes a store there finishes it, with the back-end that it names
//! unless another one is asked for.
//!
//! Invariant: whoever makes or changes a store holds its lock, since a store keeps in memory which
//! version comes next. A reader reads beside the writer. Where a reader of LMDB or SQLite can write
//! no lock of the back-end, on read-only media and in directories of other users, the reader shares
//! the lock of the store, so that no writer begins meanwhile.
//!
//! Names in the directory are never links: see `place`.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_backends::{BtreeDatabase, BtreeOptions, LsmDatabase, LsmOptions};
use terrane_io::checksum::crc32c;
use terrane_io::{self as disk, Disk, ErrorKind, LockGuard, RealDisk};
use terrane_kv::Memory;
use terrane_kv::{self as kv, Database, Durability};
use terrane_radix::{self as radix, INDEXES, Loss, Options, Repaired, Store};

mod place;

use place::Place;

/// The first word of a marker.
pub const MARKER_MAGIC: &str = "terrane-radix-store";
/// The version of markers.
pub const MARKER_VERSION: u32 = 1;
/// Bytes of a marker at most.
pub const MARKER_BYTES_MAX: u64 = 65_536;

const MARKER: &str = "radix-store";
const MARKER_NEW: &str = "radix-store.new";
const LOCK: &str = "radix-store.lock";
const DATABASE: &str = "database";

/// What the state is kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BackEnd {
    /// A sorted map in memory; it keeps nothing.
    Memory,
    /// Terrane's table engine.
    Lsm,
    /// Terrane's B+tree.
    Btree,
    /// LMDB.
    Lmdb,
    /// SQLite.
    Sqlite,
    /// A Redis server, or a cluster of them.
    Redis,
}

impl BackEnd {
    /// All, in the order of reports.
    pub const ALL: [Self; 6] =
        [Self::Memory, Self::Lsm, Self::Btree, Self::Lmdb, Self::Sqlite, Self::Redis];

    /// The name on the command line, in markers and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Lsm => "lsm",
            Self::Btree => "btree",
            Self::Lmdb => "lmdb",
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
        }
    }

    /// The back-end of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|back_end| back_end.name() == name)
    }

    /// Whether this program was built with it.
    #[must_use]
    pub fn is_built(self) -> bool {
        match self {
            Self::Memory | Self::Lsm | Self::Btree => true,
            Self::Lmdb => cfg!(feature = "lmdb"),
            Self::Sqlite => cfg!(feature = "sqlite"),
            Self::Redis => cfg!(feature = "redis"),
        }
    }

    /// Whether its data are in a directory.
    #[must_use]
    pub fn has_files(self) -> bool {
        !matches!(self, Self::Memory | Self::Redis)
    }
}

impl std::fmt::Display for BackEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Where the password of a server is. It is no part of what a marker or a report says.
#[derive(Clone, PartialEq, Eq, Default)]
pub enum Password {
    /// In the URL, or there is none.
    #[default]
    InUrl,
    /// Here.
    Text(String),
    /// In a file: the first line.
    File(PathBuf),
}

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InUrl => f.write_str("InUrl"),
            Self::Text(_) => f.write_str("Text(..)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

#[cfg(feature = "redis")]
impl Password {
    /// The password, if it is not in the URL.
    fn read(&self) -> Result<Option<String>> {
        let path = match self {
            Self::InUrl => return Ok(None),
            Self::Text(text) => return Ok(Some(text.clone())),
            Self::File(path) => path,
        };
        let mut text = String::new();
        let file = fs::File::open(path).map_err(|error| Error::io(path, error))?;
        let mut limited = io::Read::take(file, PASSWORD_BYTES_MAX + 1);
        io::Read::read_to_string(&mut limited, &mut text)
            .map_err(|error| Error::io(path, error))?;
        let line = text.lines().next().unwrap_or_default();
        if line.is_empty() || text.len() as u64 > PASSWORD_BYTES_MAX {
            let path = path.display();
            return Err(Error::Refused(format!(
                "{path} has no password: its first line is to be one, of at most {PASSWORD_BYTES_MAX} bytes"
            )));
        }
        Ok(Some(line.to_owned()))
    }
}

/// Bytes of a file with a password at most.
#[cfg(feature = "redis")]
const PASSWORD_BYTES_MAX: u64 = 4096;

/// Where a store is in Redis.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RedisPlace {
    /// URLs of the server, or with several of some servers of a cluster.
    pub urls: Vec<String>,
    /// What the keys begin with.
    pub prefix: String,
    /// Where the password is; not in markers.
    pub password: Password,
}

impl RedisPlace {
    /// A place in a server that nobody else has.
    #[must_use]
    pub fn new(urls: Vec<String>) -> Self {
        let random = RandomState::new().build_hasher().finish();
        let prefix = format!("terrane-{random:016x}");
        Self { urls, prefix, password: Password::InUrl }
    }
}

/// A store cannot be opened, or its marker not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database cannot be opened.
    #[error(transparent)]
    Database(Box<kv::Error>),
    /// The store cannot be opened, or a call of it failed.
    #[error(transparent)]
    Store(Box<radix::Error>),
    /// The program was built without the back-end.
    #[error("this program was built without {back_end}; build it with `--features {back_end}`")]
    NotBuilt {
        /// The back-end.
        back_end: BackEnd,
    },
    /// The disk does not let us, or a link or a special file is where a file of the store belongs.
    #[error(transparent)]
    Disk(Box<disk::Error>),
    /// The system does not let us.
    #[error("{}", .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The directory is something else. It is left as it is.
    #[error("{} is no radix store of Terrane: it has {name:?}", .dir.display())]
    Foreign {
        /// The directory.
        dir: PathBuf,
        /// What is in it.
        name: String,
    },
    /// There is no store where one should be.
    #[error("{} is no radix store of Terrane", .dir.display())]
    Absent {
        /// The directory.
        dir: PathBuf,
    },
    /// The making of the store was interrupted. The directory holds nothing yet.
    #[error(
        "the making of the radix store {}{} was interrupted, so it holds nothing: do what was to fill it again, or remove it",
        .dir.display(),
        .back_end.map(|back_end| format!(" (back-end {back_end})")).unwrap_or_default()
    )]
    Unfinished {
        /// The directory.
        dir: PathBuf,
        /// The back-end that it was to have, if it says so.
        back_end: Option<BackEnd>,
    },
    /// Another process has the store, or another handle of this one.
    #[error(
        "{} is in use{}; try again when that has ended",
        .dir.display(),
        .pid.map(|pid| format!(" by process {pid}")).unwrap_or_default()
    )]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// The process.
        pid: Option<u32>,
    },
    /// The marker is not one that this program wrote, or the database that it speaks of is not there.
    #[error("{}: {rule}", .path.display())]
    Corrupt {
        /// The marker, or the database.
        path: PathBuf,
        /// Which rule is broken.
        rule: String,
    },
    /// What was asked for is not what is there, or cannot be.
    #[error("{0}")]
    Refused(String),
}

/// The outcome of a call.
pub type Result<T> = std::result::Result<T, Error>;

impl From<kv::Error> for Error {
    fn from(error: kv::Error) -> Self {
        Self::Database(Box::new(error))
    }
}

impl From<disk::Error> for Error {
    fn from(error: disk::Error) -> Self {
        Self::Disk(Box::new(error))
    }
}

impl From<radix::Error> for Error {
    fn from(error: radix::Error) -> Self {
        Self::Store(Box::new(error))
    }
}

impl Error {
    /// Why the back-end cannot do what was asked, if that is what it says.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        let error = match self {
            Self::Database(error) => error.as_ref(),
            Self::Store(error) => match error.as_ref() {
                radix::Error::Unsupported(error) => error,
                _ => return None,
            },
            Self::NotBuilt { .. } => return Some(self.to_string()),
            _ => return None,
        };
        match error {
            kv::Error::Unsupported { why, .. } => Some(why.clone()),
            _ => None,
        }
    }

    /// Whether somebody else has the store.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        match self {
            Self::Database(error) => {
                matches!(**error, kv::Error::Locked { .. } | kv::Error::Busy { .. })
            }
            Self::Store(error) => matches!(**error, radix::Error::Busy(_)),
            Self::Locked { .. } => true,
            _ => false,
        }
    }

    /// What a caller can do about the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Database(error) => error.kind(),
            Self::Store(error) => error.kind(),
            Self::NotBuilt { .. } => ErrorKind::Unsupported,
            Self::Absent { .. } => ErrorKind::NotFound,
            Self::Foreign { .. } | Self::Unfinished { .. } | Self::Refused(_) => {
                ErrorKind::BadInput
            }
            Self::Disk(error) => error.error_kind(),
            Self::Io { path, source } => {
                let source = io::Error::from(source.kind());
                disk::Error::io("open", path, source).error_kind()
            }
            Self::Locked { .. } => ErrorKind::Locked,
            Self::Corrupt { .. } => ErrorKind::Corrupt,
        }
    }

    fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}

/// Opens a database that can hold a radix store, by the name of its back-end; makes it if there is none. `path` is a name
/// whose parent is there, without a meaning to memory and Redis.
///
/// # Errors
/// [`Error::NotBuilt`], and with [`Error::Database`] what the back-end says: a durability that it does not have is
/// [`kv::Error::Unsupported`] with the reason.
pub fn open_database(
    back_end: BackEnd,
    path: &Path,
    redis: Option<&RedisPlace>,
    durability: Durability,
) -> Result<Arc<dyn Database>> {
    open_on(RealDisk::auto(), back_end, path, redis, durability)
}

/// Opens a database on a disk, which back-ends that open their files by themselves do not use.
fn open_on(
    disk: Arc<dyn Disk>,
    back_end: BackEnd,
    path: &Path,
    redis: Option<&RedisPlace>,
    durability: Durability,
) -> Result<Arc<dyn Database>> {
    // What the features that are on do not read.
    let _ = (path, redis);
    match back_end {
        BackEnd::Memory => {
            if durability != Durability::None {
                return Err(unsupported(back_end, durability, "memory keeps nothing; take none"));
            }
            Ok(Arc::new(Memory::new(&INDEXES)?))
        }
        BackEnd::Lsm => {
            let options = LsmOptions::default().with_durability(durability);
            Ok(Arc::new(LsmDatabase::open(disk, path, &INDEXES, &options)?))
        }
        BackEnd::Btree => {
            let options = BtreeOptions::default().with_durability(durability);
            Ok(Arc::new(BtreeDatabase::open(disk, path, &INDEXES, &options)?))
        }
        #[cfg(feature = "lmdb")]
        BackEnd::Lmdb => lmdb(path, durability),
        #[cfg(feature = "sqlite")]
        BackEnd::Sqlite => sqlite(path, durability),
        #[cfg(feature = "redis")]
        BackEnd::Redis => open_redis(redis, durability),
        #[cfg(not(all(feature = "lmdb", feature = "sqlite", feature = "redis")))]
        _ => Err(Error::NotBuilt { back_end }),
    }
}

/// Opens the database of a store in a directory, for reading.
fn open_to_read(place: &Place, back_end: BackEnd) -> Result<Arc<dyn Database>> {
    let (disk, path) = (place.disk().clone(), place.path(DATABASE));
    match back_end {
        BackEnd::Lsm => Ok(LsmDatabase::open_read_only(disk, &path, &INDEXES)?),
        BackEnd::Btree => {
            let options = BtreeOptions::default();
            Ok(BtreeDatabase::open_read_only(disk, &path, &INDEXES, &options)?)
        }
        #[cfg(feature = "lmdb")]
        BackEnd::Lmdb => {
            use terrane_backends::lmdb::{LmdbDatabase, LmdbOptions};
            let options = LmdbOptions::default();
            Ok(Arc::new(LmdbDatabase::open_read_only(path, &INDEXES, &options)?))
        }
        #[cfg(feature = "sqlite")]
        BackEnd::Sqlite => {
            use terrane_backends::sqlite::{SqliteDatabase, SqliteOptions};
            let options = SqliteOptions::file(path);
            Ok(Arc::new(SqliteDatabase::open_read_only(&INDEXES, &options)?))
        }
        _ => Err(Error::NotBuilt { back_end }),
    }
}

/// Damage of the files of a back-end that reading them may not survive, one a line: LMDB follows
/// page numbers and offsets unchecked. Nothing for other back-ends. Cost: reads the file.
///
/// # Errors
/// Those of the system.
pub fn damage_of_files(back_end: BackEnd, database: &Path) -> Result<Vec<String>> {
    #[cfg(feature = "lmdb")]
    if back_end == BackEnd::Lmdb {
        use terrane_backends::lmdb::check_file;
        match database.symlink_metadata() {
            Ok(metadata) if metadata.is_file() => {}
            // Opening says what is wrong with it.
            Ok(_) => return Ok(Vec::new()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io(database, error)),
        }
        let findings = check_file(database).map_err(|error| Error::io(database, error))?;
        let line = |finding: &terrane_backends::lmdb::Finding| match finding.page {
            Some(page) => format!("page {page}: {}", finding.rule),
            None => finding.rule.clone(),
        };
        return Ok(findings.iter().map(line).collect());
    }
    let _ = (back_end, database);
    Ok(Vec::new())
}

/// Why neither LMDB nor SQLite has the level `group`.
#[cfg(any(feature = "lmdb", feature = "sqlite"))]
const NO_GROUP: &str = "commits cannot share a sync; take each";

/// `async` is what Transact sets: `WRITEMAP` and `MAPASYNC`.
#[cfg(feature = "lmdb")]
fn lmdb(path: &Path, durability: Durability) -> Result<Arc<dyn Database>> {
    use terrane_backends::lmdb::{LmdbDatabase, LmdbOptions, SyncMode};
    let options = match durability {
        Durability::None => LmdbOptions { sync: SyncMode::None, ..LmdbOptions::default() },
        Durability::Async => LmdbOptions::transact(),
        Durability::Each => LmdbOptions::default(),
        Durability::Group => return Err(unsupported(BackEnd::Lmdb, durability, NO_GROUP)),
    };
    Ok(Arc::new(LmdbDatabase::open(path, &INDEXES, &options)?))
}

/// A log (WAL) in every case: never synced, at checkpoints, or at each commit.
#[cfg(feature = "sqlite")]
fn sqlite(path: &Path, durability: Durability) -> Result<Arc<dyn Database>> {
    use terrane_backends::sqlite::{SqliteDatabase, SqliteOptions, Synchronous};
    let synchronous = match durability {
        Durability::None => Synchronous::Off,
        Durability::Async => Synchronous::Normal,
        Durability::Each => Synchronous::Full,
        Durability::Group => return Err(unsupported(BackEnd::Sqlite, durability, NO_GROUP)),
    };
    let options = SqliteOptions { synchronous, ..SqliteOptions::file(path) };
    Ok(Arc::new(SqliteDatabase::open(&INDEXES, &options)?))
}

#[cfg(feature = "redis")]
fn open_redis(place: Option<&RedisPlace>, durability: Durability) -> Result<Arc<dyn Database>> {
    use terrane_backends::redis::Redis;
    Ok(Arc::new(Redis::open(redis_options(place)?.with_durability(durability))?))
}

/// One URL is that of a server, several are those of a cluster.
#[cfg(feature = "redis")]
fn redis_options(place: Option<&RedisPlace>) -> Result<terrane_backends::redis::Options> {
    use terrane_backends::redis::Options;
    let options = match place.map(|place| place.urls.as_slice()) {
        Some([url]) => Options::server(url),
        Some(urls @ [_, ..]) => Options::cluster(urls),
        _ => return Err(Error::Refused(NO_SERVER.to_owned())),
    };
    let prefix = place.map(|place| place.prefix.clone()).unwrap_or_default();
    let password = place.map(|place| place.password.read()).transpose()?.flatten();
    let options = options.with_prefix(prefix).with_indexes(INDEXES).with_password(password);
    options.check()?;
    Ok(options)
}

/// The rule that an emptied or replaced database breaks.
const NO_STATE: &str = "the database holds no radix state, though one was made: restore a copy";

/// What is said where a server is needed.
const NO_SERVER: &str = "back-end redis needs the URL of a server: --redis-url";

fn unsupported(back_end: BackEnd, durability: Durability, why: &str) -> Error {
    let (back_end, option) = (back_end.name(), format!("durability {}", durability.name()));
    kv::Error::Unsupported { back_end, option, why: why.to_owned() }.into()
}

/// What a marker says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// What the state is kept in.
    pub back_end: BackEnd,
    /// Where, if that is Redis.
    pub redis: Option<RedisPlace>,
}

/// Whether a directory is that of a radix store, also of one that is not whole.
///
/// # Errors
/// Those of the system: a marker that cannot be looked at is not missing.
pub fn is_store(dir: &Path) -> Result<bool> {
    let Some(place) = Place::of(dir)? else { return Ok(false) };
    Ok(place.has(MARKER)? || place.has(MARKER_NEW)?)
}

/// Where the back-end of a store keeps its data.
#[must_use]
pub fn database_path(dir: &Path) -> PathBuf {
    dir.join(DATABASE)
}

/// A URL of a server without what says who asks: user and password before the host, and all of the query but what is known to be
/// neither.
#[must_use]
pub fn without_user(url: &str) -> String {
    let url = url.split('#').next().unwrap_or_default();
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let mut written = match place.split_once("://") {
        Some((scheme, rest)) => {
            let host_end = rest.find('/').unwrap_or(rest.len());
            let host = rest[..host_end].rfind('@').map_or(0, |at| at + 1);
            format!("{scheme}://{}", &rest[host..])
        }
        None => place.to_owned(),
    };
    let is_public = |field: &&str| field.starts_with("db=") || field.starts_with("protocol=");
    for (number, field) in query.split('&').filter(is_public).enumerate() {
        written.push(if number == 0 { '?' } else { '&' });
        written.push_str(field);
    }
    written
}

impl Marker {
    /// Reads the marker of a store.
    ///
    /// # Errors
    /// [`Error::Absent`], [`Error::Unfinished`], [`Error::Corrupt`], [`Error::Disk`].
    pub fn read(dir: &Path) -> Result<Self> {
        Self::read_at(&Place::open(dir)?)
    }

    fn read_at(place: &Place) -> Result<Self> {
        if let Some(marker) = Self::read_named(place, MARKER)? {
            return Ok(marker);
        }
        let dir = place.dir().to_owned();
        if !place.has(MARKER_NEW)? {
            return Err(Error::Absent { dir });
        }
        let back_end = Self::begun(place)?.map(|marker| marker.back_end);
        Err(Error::Unfinished { dir, back_end })
    }

    /// What an interrupted creation was to make, if it came so far as to say it.
    fn begun(place: &Place) -> Result<Option<Self>> {
        match Self::read_named(place, MARKER_NEW) {
            Err(Error::Corrupt { .. }) => Ok(None),
            marker => marker,
        }
    }

    fn read_named(place: &Place, name: &str) -> Result<Option<Self>> {
        let Some(bytes) = place.read(name)? else { return Ok(None) };
        let corrupt = |rule: String| Error::Corrupt { path: place.path(name), rule };
        Self::parse(&bytes).map(Some).map_err(corrupt)
    }

    fn parse(bytes: &[u8]) -> std::result::Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "the marker is no text".to_owned())?;
        let body = text.strip_suffix('\n').and_then(|text| text.rfind('\n'));
        let body = &text[..body.map_or(0, |end| end + 1)];
        let checksum = format!("crc32c {:08x}\n", crc32c(body.as_bytes()));
        if text[body.len()..] != checksum {
            return Err("the checksum of the marker is wrong".to_owned());
        }
        let mut lines = body.lines();
        let mut field = |name: &str| {
            let line = lines.next().unwrap_or_default();
            let value = line.strip_prefix(name).and_then(|value| value.strip_prefix(' '));
            value.map(str::to_owned).ok_or_else(|| format!("the marker has no {name}"))
        };
        let version = field(MARKER_MAGIC)?;
        if version != MARKER_VERSION.to_string() {
            return Err(format!(
                "the marker has version {version}; this program reads {MARKER_VERSION}"
            ));
        }
        let name = field("back-end")?;
        let back_end = BackEnd::named(&name)
            .filter(|back_end| *back_end != BackEnd::Memory)
            .ok_or_else(|| format!("the marker names the back-end {name:?}, which is unknown"))?;
        let redis = if back_end == BackEnd::Redis {
            let prefix = field("prefix")?;
            let mut urls = vec![field("url")?];
            for line in lines.by_ref() {
                let url = line.strip_prefix("url ");
                urls.push(
                    url.ok_or_else(|| "the marker has an unknown line".to_owned())?.to_owned(),
                );
            }
            Some(RedisPlace { urls, prefix, password: Password::InUrl })
        } else {
            None
        };
        match lines.next() {
            None => Ok(Self { back_end, redis }),
            Some(_) => Err("the marker has an unknown line".to_owned()),
        }
    }

    fn text(&self) -> String {
        let mut text = format!("{MARKER_MAGIC} {MARKER_VERSION}\nback-end {}\n", self.back_end);
        if let Some(RedisPlace { urls, prefix, .. }) = &self.redis {
            let lines = urls.iter().map(|url| format!("url {}\n", without_user(url)));
            text += &lines.fold(format!("prefix {prefix}\n"), |text, line| text + &line);
        }
        let checksum = crc32c(text.as_bytes());
        text + &format!("crc32c {checksum:08x}\n")
    }

    /// Writes it under the name that an unfinished store has.
    fn begin(&self, place: &Place) -> Result<()> {
        place.write(MARKER_NEW, self.text().as_bytes())?;
        place.sync()
    }

    /// Says that the store is made.
    fn finish(place: &Place) -> Result<()> {
        // Names that the back-end has made come first.
        place.sync()?;
        place.rename(MARKER_NEW, MARKER)?;
        place.sync()
    }
}

/// Makes a directory and those above it that are not there, durably.
fn make_dirs(dir: &Path) -> Result<()> {
    let mut missing = Vec::new();
    for one in dir.ancestors().take_while(|one| !one.as_os_str().is_empty()) {
        if one.try_exists().map_err(|error| Error::io(one, error))? {
            break;
        }
        missing.push(one);
    }
    fs::create_dir_all(dir).map_err(|error| Error::io(dir, error))?;

    let disk = RealDisk::auto();
    for parent in missing.iter().rev().filter_map(|made| made.parent()) {
        disk.sync_dir(parent)?;
    }
    Ok(())
}

/// An open store, and its lock: other processes have it when this is dropped. Trees of it are not to be used any more then.
#[derive(Debug)]
pub struct Opened {
    store: Store,
    _lock: Option<Box<dyn LockGuard>>,
    _place: Option<Place>,
}

impl From<Store> for Opened {
    /// A store that is in no directory.
    fn from(store: Store) -> Self {
        Self { store, _lock: None, _place: None }
    }
}

impl std::ops::Deref for Opened {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

/// How a store in a directory is opened.
#[derive(Debug, Clone)]
pub struct Opening {
    /// The back-end that it must have; whichever it has if `None`.
    pub back_end: Option<BackEnd>,
    /// Where Redis is: for a new store, or instead of what the marker says, as with a password.
    pub redis_urls: Vec<String>,
    /// Where the password of the servers is.
    pub redis_password: Password,
    /// How durable commits are.
    pub durability: Durability,
    /// Whether the store is only read: another process may write it meanwhile, and nothing is
    /// changed.
    pub is_reading: bool,
    /// How the state is opened.
    pub options: Options,
}

impl Default for Opening {
    fn default() -> Self {
        Self {
            back_end: None,
            redis_urls: Vec::new(),
            redis_password: Password::InUrl,
            durability: Durability::Each,
            is_reading: false,
            options: Options::default(),
        }
    }
}

impl Opening {
    /// Opens the store of a directory.
    ///
    /// # Errors
    /// [`Error::Absent`], [`Error::Unfinished`], [`Error::Corrupt`], [`Error::Refused`] if it has another back-end,
    /// [`Error::Locked`], and those of [`open_database`].
    pub fn open(&self, dir: &Path) -> Result<Opened> {
        let place = Place::open(dir)?;
        let marker = self.marker(&place)?;
        let lock = self.take_lock(&place, &marker)?;
        let database = self.database(&place, &marker)?;
        if !Store::is_in(&*database)? {
            // The store was made: a database without it is another one, or one that was emptied.
            database.close()?;
            let (path, rule) = (place.path(DATABASE), NO_STATE.to_owned());
            return Err(Error::Corrupt { path, rule });
        }
        let store = Store::open(database, &self.options)?;
        Ok(Opened { store, _lock: lock, _place: Some(place) })
    }

    /// The lock that this opening needs.
    fn take_lock(&self, place: &Place, marker: &Marker) -> Result<Option<Box<dyn LockGuard>>> {
        if !self.is_reading {
            return place.lock().map(Some);
        }
        match marker.back_end {
            BackEnd::Lmdb | BackEnd::Sqlite if !place.can_write()? => place.lock_shared(),
            _ => Ok(None),
        }
    }

    /// Takes out of the store of a directory what is damaged, and syncs what was done; see [`Store::repair`].
    ///
    /// # Errors
    /// As [`open`](Self::open), and those of `repair`.
    pub fn repair(&self, dir: &Path, loss: Loss) -> Result<Repaired> {
        let place = Place::open(dir)?;
        let marker = self.marker(&place)?;
        let _lock = place.lock()?;
        let path = place.path(DATABASE);
        if let Some(rule) = damage_of_files(marker.back_end, &path)?.into_iter().next() {
            return Err(Error::Corrupt { path, rule });
        }
        let database = self.database(&place, &marker)?;
        let repaired = Store::repair(&database, loss);
        let synced = match (&repaired, self.durability) {
            (Ok(done), Durability::None) if !done.is_clean() && !done.was_refused => {
                database.sync()
            }
            _ => Ok(()),
        };
        let closed = database.close();
        let repaired = repaired?;
        synced?;
        closed?;
        Ok(repaired)
    }

    /// What the directory says that it has.
    fn marker(&self, place: &Place) -> Result<Marker> {
        let marker = Marker::read_at(place)?;
        if let Some(wanted) = self.back_end.filter(|wanted| *wanted != marker.back_end) {
            let (dir, found) = (place.dir().display(), marker.back_end);
            return Err(Error::Refused(format!("{dir} has the back-end {found}, not {wanted}")));
        }
        if marker.back_end.has_files() {
            place.check_database()?;
        }
        Ok(marker)
    }

    /// The same, or makes a store where nothing is, or an empty directory; finishes one whose making was interrupted.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::Foreign`] if the directory is something else.
    pub fn open_or_create(&self, dir: &Path) -> Result<Opened> {
        let found = Place::of(dir)?;
        if let Some(place) = &found {
            if place.has(MARKER)? {
                return self.open(dir);
            }
            Self::check_empty(place)?;
        }
        // What cannot be made is refused before there is a directory.
        self.new_marker(found.as_ref())?;

        make_dirs(dir)?;
        let place = Place::open(dir)?;
        let guard = place.lock()?;
        if place.has(MARKER)? {
            // Another process has made it meanwhile, and is through with it.
            drop(guard);
            return self.open(dir);
        }
        let made = self.create(&place);
        if made.is_err() {
            // Nothing of a store that cannot be made is left, as far as the system lets us. The lock is held until it is gone.
            let _ = Self::clear(&place);
            let _ = place.remove(MARKER_NEW);
            let _ = place.remove(LOCK);
        }
        Ok(Opened { store: made?, _lock: Some(guard), _place: Some(place) })
    }

    /// The caller holds the lock.
    fn create(&self, place: &Place) -> Result<Store> {
        let marker = self.new_marker(Some(place))?;
        Self::clear(place)?;
        marker.begin(place)?;
        let store = self.open_marked(place, &marker)?;
        Marker::finish(place)?;
        Ok(store)
    }

    /// The marker of a store to be made: what is asked for, and of the rest what an interrupted creation was to make.
    fn new_marker(&self, place: Option<&Place>) -> Result<Marker> {
        let begun = place.map(Marker::begun).transpose()?.flatten();
        let back_end = self.back_end.or(begun.as_ref().map(|begun| begun.back_end));
        let back_end = back_end.unwrap_or(BackEnd::Lsm);
        if !back_end.is_built() {
            return Err(Error::NotBuilt { back_end });
        }
        match back_end {
            BackEnd::Memory => {
                let refused = "back-end memory keeps nothing; choose another";
                return Err(Error::Refused(refused.to_owned()));
            }
            BackEnd::Redis => {}
            _ => return Ok(Marker { back_end, redis: None }),
        }
        let urls = self.redis_urls.clone();
        let place = match begun.and_then(|begun| begun.redis) {
            Some(place) if urls.is_empty() => place,
            Some(place) => RedisPlace { urls, ..place },
            None => RedisPlace::new(urls),
        };
        if place.urls.is_empty() {
            return Err(Error::Refused(NO_SERVER.to_owned()));
        }
        if place.urls.iter().any(|url| url.contains(char::is_control)) {
            let refused = "a URL of a Redis server has no line feeds and other control characters";
            return Err(Error::Refused(refused.to_owned()));
        }
        let place = RedisPlace { password: self.redis_password.clone(), ..place };
        #[cfg(feature = "redis")]
        redis_options(Some(&place))?;
        Ok(Marker { back_end, redis: Some(place) })
    }

    fn open_marked(&self, place: &Place, marker: &Marker) -> Result<Store> {
        Ok(Store::open(self.database(place, marker)?, &self.options)?)
    }

    fn database(&self, place: &Place, marker: &Marker) -> Result<Arc<dyn Database>> {
        let redis = marker.redis.clone().map(|place| {
            let urls =
                if self.redis_urls.is_empty() { place.urls } else { self.redis_urls.clone() };
            RedisPlace { urls, password: self.redis_password.clone(), ..place }
        });
        #[cfg(feature = "redis")]
        if self.is_reading && marker.back_end == BackEnd::Redis {
            use terrane_backends::redis::Redis;
            let options = redis_options(redis.as_ref())?.read_only();
            return Ok(Arc::new(Redis::open(options)?));
        }
        if self.is_reading {
            return open_to_read(place, marker.back_end);
        }
        let (disk, path) = (place.disk().clone(), place.path(DATABASE));
        open_on(disk, marker.back_end, &path, redis.as_ref(), self.durability)
    }

    /// Refuses a directory that has anything but what an interrupted creation left.
    fn check_empty(place: &Place) -> Result<()> {
        let is_begun = place.has(MARKER_NEW)?;
        for (name, _) in place.entries()? {
            let is_ours = is_begun && (name == MARKER_NEW || name.starts_with(DATABASE));
            if name != LOCK && !is_ours {
                return Err(Error::Foreign { dir: place.dir().to_owned(), name });
            }
        }
        Ok(())
    }

    /// Removes what an interrupted creation has made of a database, which holds nothing.
    fn clear(place: &Place) -> Result<()> {
        for (name, kind) in place.entries()? {
            if name.starts_with(DATABASE) {
                place.remove_all(&place.path(&name), kind)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_comes_back_and_no_changed_byte_of_one_is_taken() {
        let redis = RedisPlace {
            urls: vec!["redis://a:1/2".to_owned(), "redis://b".to_owned()],
            prefix: "terrane-00".to_owned(),
            password: Password::InUrl,
        };
        for marker in [
            Marker { back_end: BackEnd::Sqlite, redis: None },
            Marker { back_end: BackEnd::Redis, redis: Some(redis) },
        ] {
            let text = marker.text();
            assert_eq!(Marker::parse(text.as_bytes()), Ok(marker));
            for at in 0..text.len() {
                for bit in 0..8 {
                    let mut bytes = text.clone().into_bytes();
                    bytes[at] ^= 1 << bit;
                    assert!(Marker::parse(&bytes).is_err(), "bit {bit} of byte {at}");
                }
                assert!(Marker::parse(&text.as_bytes()[..at]).is_err(), "cut at {at}");
            }
        }
    }

    #[test]
    fn users_and_passwords_are_not_written() {
        for (url, written) in [
            ("redis://user:pass@host:1/2", "redis://host:1/2"),
            ("redis://:p@ss@host", "redis://host"),
            ("redis://host:1", "redis://host:1"),
            ("redis://me:it@host?protocol=resp3", "redis://host?protocol=resp3"),
            ("redis+unix:///run/redis.sock", "redis+unix:///run/redis.sock"),
            ("redis+unix:///run/a@b.sock", "redis+unix:///run/a@b.sock"),
            (
                "redis+unix:///a?user=me&db=3&pass=it&protocol=resp3",
                "redis+unix:///a?db=3&protocol=resp3",
            ),
            ("unix:///a?pass=it", "unix:///a"),
            ("unix:/a?p%61ss=it#more", "unix:/a"),
        ] {
            assert_eq!(without_user(url), written);
        }
    }
}
