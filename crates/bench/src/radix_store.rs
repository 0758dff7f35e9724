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
//! Invariant: whoever makes or changes a store holds its lock, since a store keeps in memory which version comes next. Who only
//! reads holds it too, unless processes can share the back-end.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane::backends::backend::{self, Database, Durability};
use terrane::backends::{BtreeDatabase, BtreeOptions, LsmDatabase, LsmOptions, Memory};
use terrane::context::radix::{self, INDEXES, Loss, Options, Repaired, Store};
use terrane::io::checksum::crc32c;
use terrane::io::{self as disk, Disk as _, LockGuard, RealDisk};

use crate::error::Class;

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

    /// Whether a process can read a store while another one writes it.
    fn is_shared(self) -> bool {
        matches!(self, Self::Lmdb | Self::Sqlite | Self::Redis)
    }
}

impl std::fmt::Display for BackEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a store is in Redis.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RedisPlace {
    /// URLs of the server, or with several of some servers of a cluster.
    pub urls: Vec<String>,
    /// What the keys begin with.
    pub prefix: String,
}

impl RedisPlace {
    /// A place in a server that nobody else has.
    #[must_use]
    pub fn new(urls: Vec<String>) -> Self {
        let random = RandomState::new().build_hasher().finish();
        Self { urls, prefix: format!("terrane-{random:016x}") }
    }
}

/// A store cannot be opened, or its marker not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database cannot be opened.
    #[error(transparent)]
    Database(Box<backend::Error>),
    /// The store cannot be opened, or a call of it failed.
    #[error(transparent)]
    Store(Box<radix::Error>),
    /// The program was built without the back-end.
    #[error("this program was built without {back_end}; build it with `--features {back_end}`")]
    NotBuilt {
        /// The back-end.
        back_end: BackEnd,
    },
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

impl From<backend::Error> for Error {
    fn from(error: backend::Error) -> Self {
        Self::Database(Box::new(error))
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
            backend::Error::Unsupported { why, .. } => Some(why.clone()),
            _ => None,
        }
    }

    /// Whether somebody else has the store.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        match self {
            Self::Database(error) => {
                matches!(**error, backend::Error::Locked { .. } | backend::Error::Busy { .. })
            }
            Self::Store(error) => matches!(**error, radix::Error::Busy(_)),
            Self::Locked { .. } => true,
            _ => false,
        }
    }

    /// How to react to it.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Database(error) => Class::from(&**error),
            Self::Store(error) => Class::from(&**error),
            Self::NotBuilt { .. }
            | Self::Foreign { .. }
            | Self::Absent { .. }
            | Self::Unfinished { .. }
            | Self::Refused(_) => Class::Input,
            Self::Io { .. } | Self::Locked { .. } => Class::Environment,
            Self::Corrupt { .. } => Class::Check,
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
/// [`backend::Error::Unsupported`] with the reason.
pub fn open_database(
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
            Ok(Arc::new(LsmDatabase::open(RealDisk::auto(), path, &INDEXES, &options)?))
        }
        BackEnd::Btree => {
            let options = BtreeOptions::default().with_durability(durability);
            Ok(Arc::new(BtreeDatabase::open(RealDisk::auto(), path, &INDEXES, &options)?))
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

/// Why neither LMDB nor SQLite has the level `group`.
#[cfg(any(feature = "lmdb", feature = "sqlite"))]
const NO_GROUP: &str = "commits cannot share a sync; take each";

/// `async` is what Transact sets: `WRITEMAP` and `MAPASYNC`.
#[cfg(feature = "lmdb")]
fn lmdb(path: &Path, durability: Durability) -> Result<Arc<dyn Database>> {
    use terrane::backends::lmdb::{LmdbDatabase, LmdbOptions, SyncMode};
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
    use terrane::backends::sqlite::{SqliteDatabase, SqliteOptions, Synchronous};
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
    use terrane::backends::redis::Redis;
    Ok(Arc::new(Redis::open(redis_options(place)?.with_durability(durability))?))
}

/// One URL is that of a server, several are those of a cluster.
#[cfg(feature = "redis")]
fn redis_options(place: Option<&RedisPlace>) -> Result<terrane::backends::redis::Options> {
    use terrane::backends::redis::Options;
    let options = match place.map(|place| place.urls.as_slice()) {
        Some([url]) => Options::server(url),
        Some(urls @ [_, ..]) => Options::cluster(urls),
        _ => return Err(Error::Refused(NO_SERVER.to_owned())),
    };
    let prefix = place.map(|place| place.prefix.clone()).unwrap_or_default();
    let options = options.with_prefix(prefix).with_indexes(INDEXES);
    options.check()?;
    Ok(options)
}

/// What is said where a server is needed.
const NO_SERVER: &str = "back-end redis needs the URL of a server: --redis-url";

fn unsupported(back_end: BackEnd, durability: Durability, why: &str) -> Error {
    let (back_end, option) = (back_end.name(), format!("durability {}", durability.name()));
    backend::Error::Unsupported { back_end, option, why: why.to_owned() }.into()
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
#[must_use]
pub fn is_store(dir: &Path) -> bool {
    [MARKER, MARKER_NEW].iter().any(|name| dir.join(name).is_file())
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
    /// [`Error::Absent`], [`Error::Unfinished`], [`Error::Corrupt`], [`Error::Io`].
    pub fn read(dir: &Path) -> Result<Self> {
        match Self::read_named(dir, MARKER) {
            Err(Error::Absent { dir }) if dir.join(MARKER_NEW).exists() => {
                let back_end = Self::begun(&dir)?.map(|marker| marker.back_end);
                Err(Error::Unfinished { dir, back_end })
            }
            marker => marker,
        }
    }

    /// What an interrupted creation was to make, if it came so far as to say it.
    fn begun(dir: &Path) -> Result<Option<Self>> {
        match Self::read_named(dir, MARKER_NEW) {
            Err(Error::Absent { .. } | Error::Corrupt { .. }) => Ok(None),
            marker => marker.map(Some),
        }
    }

    fn read_named(dir: &Path, name: &str) -> Result<Self> {
        let path = dir.join(name);
        let metadata = match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::Absent { dir: dir.to_owned() });
            }
            found => found.map_err(|error| Error::io(&path, error))?,
        };
        let corrupt = |rule: String| Error::Corrupt { path: path.clone(), rule };
        if metadata.len() > MARKER_BYTES_MAX {
            return Err(corrupt(format!("the marker has more than {MARKER_BYTES_MAX} bytes")));
        }
        let bytes = fs::read(&path).map_err(|error| Error::io(&path, error))?;
        Self::parse(&bytes).map_err(corrupt)
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
            Some(RedisPlace { urls, prefix })
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
        if let Some(RedisPlace { urls, prefix }) = &self.redis {
            let lines = urls.iter().map(|url| format!("url {}\n", without_user(url)));
            text += &lines.fold(format!("prefix {prefix}\n"), |text, line| text + &line);
        }
        let checksum = crc32c(text.as_bytes());
        text + &format!("crc32c {checksum:08x}\n")
    }

    /// Writes it under the name that an unfinished store has.
    fn begin(&self, dir: &Path) -> Result<()> {
        let path = dir.join(MARKER_NEW);
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(self.text().as_bytes())?;
            file.sync_all()?;
            sync_dir(dir)
        };
        write().map_err(|error| Error::io(&path, error))
    }

    /// Says that the store is made.
    fn finish(dir: &Path) -> Result<()> {
        let path = dir.join(MARKER);
        let rename = || {
            // Names that the back-end has made come first.
            sync_dir(dir)?;
            fs::rename(dir.join(MARKER_NEW), &path)?;
            sync_dir(dir)
        };
        rename().map_err(|error| Error::io(&path, error))
    }
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    let here = Path::new(".");
    File::open(if dir.as_os_str().is_empty() { here } else { dir })?.sync_all()
}

/// Makes a directory and those above it that are not there, durably.
fn make_dirs(dir: &Path) -> Result<()> {
    let missing = dir.ancestors().take_while(|one| !one.as_os_str().is_empty() && !one.exists());
    let missing: Vec<&Path> = missing.collect();
    fs::create_dir_all(dir).map_err(|error| Error::io(dir, error))?;
    for parent in missing.iter().rev().filter_map(|made| made.parent()) {
        sync_dir(parent).map_err(|error| Error::io(parent, error))?;
    }
    Ok(())
}

/// The lock of a store, for as long as the guard lives.
fn lock(dir: &Path) -> Result<Box<dyn LockGuard>> {
    let path = dir.join(LOCK);
    RealDisk::auto().lock(&path).map_err(|error| match error {
        disk::Error::Locked { pid, .. } => Error::Locked { dir: dir.to_owned(), pid },
        error => Error::io(&path, io::Error::other(error)),
    })
}

/// An open store, and its lock: other processes have it when this is dropped. Trees of it are not to be used any more then.
#[derive(Debug)]
pub struct Opened {
    store: Store,
    _lock: Option<Box<dyn LockGuard>>,
}

impl From<Store> for Opened {
    /// A store that is in no directory.
    fn from(store: Store) -> Self {
        Self { store, _lock: None }
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
    /// How durable commits are.
    pub durability: Durability,
    /// Whether the store is only read. Then what is durable stays so, whatever `durability` says, and a back-end that
    /// processes can share is read while another process writes.
    pub is_reading: bool,
    /// How the state is opened.
    pub options: Options,
}

impl Default for Opening {
    fn default() -> Self {
        Self {
            back_end: None,
            redis_urls: Vec::new(),
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
        let marker = self.marker(dir)?;
        let is_alone = !(self.is_reading && marker.back_end.is_shared());
        let lock = if is_alone { Some(lock(dir)?) } else { None };
        Ok(Opened { store: self.open_marked(dir, &marker)?, _lock: lock })
    }

    /// Takes out of the store of a directory what is damaged, and syncs what was done; see [`Store::repair`].
    ///
    /// # Errors
    /// As [`open`](Self::open), and those of `repair`.
    pub fn repair(&self, dir: &Path, loss: Loss) -> Result<Repaired> {
        let marker = self.marker(dir)?;
        let _lock = lock(dir)?;
        let database = self.database(dir, &marker)?;
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
    fn marker(&self, dir: &Path) -> Result<Marker> {
        let marker = Marker::read(dir)?;
        if let Some(wanted) = self.back_end.filter(|wanted| *wanted != marker.back_end) {
            let (dir, found) = (dir.display(), marker.back_end);
            return Err(Error::Refused(format!("{dir} has the back-end {found}, not {wanted}")));
        }
        let path = database_path(dir);
        if marker.back_end.has_files() && !path.exists() {
            return Err(Error::Corrupt { path, rule: "the database is missing".to_owned() });
        }
        Ok(marker)
    }

    /// The same, or makes a store where nothing is, or an empty directory; finishes one whose making was interrupted.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::Foreign`] if the directory is something else.
    pub fn open_or_create(&self, dir: &Path) -> Result<Opened> {
        if dir.join(MARKER).exists() {
            return self.open(dir);
        }
        Self::check_empty(dir)?;
        // What cannot be made is refused before there is a directory.
        self.new_marker(dir)?;
        make_dirs(dir)?;
        let guard = lock(dir)?;
        if dir.join(MARKER).exists() {
            // Another process has made it meanwhile, and is through with it.
            drop(guard);
            return self.open(dir);
        }
        let made = self.create(dir);
        if made.is_err() {
            // Nothing of a store that cannot be made is left, as far as the system lets us. The lock is held until it is gone.
            let _ = Self::clear(dir);
            let _ = fs::remove_file(dir.join(MARKER_NEW));
            let _ = fs::remove_file(dir.join(LOCK));
        }
        Ok(Opened { store: made?, _lock: Some(guard) })
    }

    /// The caller holds the lock.
    fn create(&self, dir: &Path) -> Result<Store> {
        let marker = self.new_marker(dir)?;
        Self::clear(dir)?;
        marker.begin(dir)?;
        let store = self.open_marked(dir, &marker)?;
        Marker::finish(dir)?;
        Ok(store)
    }

    /// The marker of a store to be made: what is asked for, and of the rest what an interrupted creation was to make.
    fn new_marker(&self, dir: &Path) -> Result<Marker> {
        let begun = Marker::begun(dir)?;
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
        #[cfg(feature = "redis")]
        redis_options(Some(&place))?;
        Ok(Marker { back_end, redis: Some(place) })
    }

    fn open_marked(&self, dir: &Path, marker: &Marker) -> Result<Store> {
        Ok(Store::open(self.database(dir, marker)?, &self.options)?)
    }

    fn database(&self, dir: &Path, marker: &Marker) -> Result<Arc<dyn Database>> {
        let redis = marker.redis.clone().map(|place| match self.redis_urls.as_slice() {
            [] => place,
            urls => RedisPlace { urls: urls.to_vec(), ..place },
        });
        let path = database_path(dir);
        #[cfg(feature = "redis")]
        if self.is_reading && marker.back_end == BackEnd::Redis {
            use terrane::backends::redis::Redis;
            let options = redis_options(redis.as_ref())?.read_only();
            return Ok(Arc::new(Redis::open(options)?));
        }
        // Without syncs a back-end may take back what was durable, as where it writes files anew when it closes.
        let durability = if self.is_reading { Durability::Each } else { self.durability };
        open_database(marker.back_end, &path, redis.as_ref(), durability)
    }

    /// Whether there is nothing, or only what an interrupted creation left.
    fn check_empty(dir: &Path) -> Result<()> {
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(|error| Error::io(dir, error))?,
        };
        let is_begun = dir.join(MARKER_NEW).exists();
        for entry in entries {
            let entry = entry.map_err(|error| Error::io(dir, error))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_ours = is_begun && (name == MARKER_NEW || name.starts_with(DATABASE));
            if name != LOCK && !is_ours {
                return Err(Error::Foreign { dir: dir.to_owned(), name });
            }
        }
        Ok(())
    }

    /// Removes what an interrupted creation has made of a database, which holds nothing.
    fn clear(dir: &Path) -> Result<()> {
        let entries = fs::read_dir(dir).map_err(|error| Error::io(dir, error))?;
        for entry in entries {
            let entry = entry.map_err(|error| Error::io(dir, error))?;
            if !entry.file_name().as_encoded_bytes().starts_with(DATABASE.as_bytes()) {
                continue;
            }
            let path = entry.path();
            let removed =
                if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(|error| Error::io(&path, error))?;
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
