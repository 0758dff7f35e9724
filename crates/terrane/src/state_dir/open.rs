//! Opening, creating and repairing the radix store of a directory.
//!
//! Order of a creation: lock, unfinished marker, database, rename of the marker. A crash before the
//! rename leaves an unfinished creation, which the next one clears and repeats.

use std::fs;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use terrane_io::{Disk, LockGuard, RealDisk};
use terrane_kv::{Database, Durability};
use terrane_radix::{INDEXES, Loss, Options, Repaired, Store};

use super::damage_of_files;
use super::dir::{DATABASE, LOCK, MARKER, MARKER_NEW, StateDir};
use super::error::{Error, Result};
use super::marker::Marker;
#[cfg(feature = "cassandra")]
use crate::back_end::cassandra_options;
#[cfg(feature = "redis")]
use crate::back_end::redis_options;
use crate::back_end::{
    BackEnd, CassandraAddress, Location, NO_CLUSTER, NO_SERVER, Password, RedisAddress,
};

/// Rule that an emptied or replaced database breaks.
const NO_STATE: &str = "the database holds no radix state, though one was made: restore a copy";

/// Creates a directory and its missing parents, durably.
fn create_dirs(dir: &Path) -> Result<()> {
    let mut missing = Vec::new();
    for one in dir.ancestors().take_while(|one| !one.as_os_str().is_empty()) {
        if one.try_exists().map_err(|error| Error::io(one, error))? {
            break;
        }
        missing.push(one);
    }

    fs::create_dir_all(dir).map_err(|error| Error::io(dir, error))?;

    // A directory is durable once its parent is synced, the outermost first.
    let disk = RealDisk::auto();
    for parent in missing.iter().rev().filter_map(|created| created.parent()) {
        disk.sync_dir(parent)?;
    }

    Ok(())
}

/// Open radix store with the lock of its directory. Dereferences to [`Store`].
///
/// Dropping the value releases the lock; trees of the store must not be used afterwards.
#[derive(Debug)]
pub struct OpenStore {
    store: Store,
    _lock: Option<Box<dyn LockGuard>>,
    _dir: Option<StateDir>,
}

impl From<Store> for OpenStore {
    /// Wraps a store that is in no directory.
    fn from(store: Store) -> Self {
        Self { store, _lock: None, _dir: None }
    }
}

impl Deref for OpenStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

/// Options of opening, creating or repairing the radix store of a directory.
///
/// ```no_run
/// use std::path::Path;
/// use terrane::kv::Durability;
/// use terrane::state_dir::{BackEnd, OpenOptions};
///
/// # fn main() -> Result<(), terrane::state_dir::Error> {
/// let options = OpenOptions::new(BackEnd::Lsm).durability(Durability::Group);
/// let store = options.open_or_create(Path::new("/var/lib/node/state"))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Back-end that the store must have; `None` accepts any, and creates [`BackEnd::Lsm`].
    pub back_end: Option<BackEnd>,
    /// URLs of the Redis servers of a new store. They replace those of a marker, for instance to
    /// add a user.
    pub redis_urls: Vec<String>,
    /// Source of the password of the Redis servers.
    pub redis_password: Password,
    /// URL of the Cassandra cluster of a new store: contact points and keyspace. It replaces that
    /// of a marker, for instance to name other nodes.
    pub cassandra_url: Option<String>,
    /// Durability of commits; [`Durability::Each`] by default.
    pub durability: Durability,
    /// Whether the store is only read, perhaps beside the process that writes it.
    pub is_read_only: bool,
    /// Options of the radix store itself.
    pub options: Options,
}

impl Default for OpenOptions {
    /// Options that open the store of any back-end for writing.
    fn default() -> Self {
        Self {
            back_end: None,
            redis_urls: Vec::new(),
            redis_password: Password::InUrl,
            cassandra_url: None,
            durability: Durability::Each,
            is_read_only: false,
            options: Options::default(),
        }
    }
}

impl OpenOptions {
    /// Returns default options for a store of this back-end.
    #[must_use]
    pub fn new(back_end: BackEnd) -> Self {
        Self { back_end: Some(back_end), ..Self::default() }
    }

    /// Sets the durability of commits. A back-end that lacks the level refuses to open.
    #[must_use]
    pub fn durability(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }

    /// Sets the back-end that the store must have. `None` accepts any.
    #[must_use]
    pub fn back_end(self, back_end: impl Into<Option<BackEnd>>) -> Self {
        Self { back_end: back_end.into(), ..self }
    }

    /// Sets the options of the radix store itself.
    #[must_use]
    pub fn options(self, options: Options) -> Self {
        Self { options, ..self }
    }

    /// Opens the store for reading: nothing is changed, and another process may write the store
    /// meanwhile.
    #[must_use]
    pub fn read_only(self) -> Self {
        self.is_read_only(true)
    }

    /// Sets [`is_read_only`](Self::is_read_only).
    #[must_use]
    pub fn is_read_only(self, is_read_only: bool) -> Self {
        Self { is_read_only, ..self }
    }

    /// Sets the URLs of the Redis servers: one server, or several servers of one cluster.
    #[must_use]
    pub fn redis_urls(self, urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { redis_urls: urls.into_iter().map(Into::into).collect(), ..self }
    }

    /// Sets the source of the password of the Redis servers.
    #[must_use]
    pub fn redis_password(self, redis_password: Password) -> Self {
        Self { redis_password, ..self }
    }

    /// Sets the URL of the Cassandra cluster: `cassandra://HOST,HOST/KEYSPACE`. Credentials and
    /// certificates come from the environment; see [`kv`](crate::kv).
    #[must_use]
    pub fn cassandra_url(self, url: impl Into<Option<String>>) -> Self {
        Self { cassandra_url: url.into(), ..self }
    }

    /// Opens the store of a directory.
    ///
    /// # Errors
    /// [`Error::Absent`], [`Error::Unfinished`], [`Error::Corrupt`], [`Error::Locked`];
    /// [`Error::Refused`] if the store has another back-end; and those of the back-end.
    pub fn open(&self, dir: &Path) -> Result<OpenStore> {
        let dir = StateDir::open(dir)?;
        let marker = self.marker(&dir)?;
        let lock = self.take_lock(&dir, &marker)?;
        let database = self.database(&dir, &marker)?;

        // The marker says that the store was made. A database without a state is another database,
        // or was emptied; opening it as a store would fill it with an empty state and hide the
        // loss.
        if !Store::is_in(&*database)? {
            database.close()?;
            let rule = NO_STATE.to_owned();
            return Err(Error::Corrupt { path: dir.path(DATABASE), rule });
        }

        let store = Store::open(database, &self.options)?;
        Ok(OpenStore { store, _lock: lock, _dir: Some(dir) })
    }

    /// Takes the lock that these options need: a writer's, or none for most readers.
    fn take_lock(&self, dir: &StateDir, marker: &Marker) -> Result<Option<Box<dyn LockGuard>>> {
        if !self.is_read_only {
            return dir.lock().map(Some);
        }
        // Where a reader of LMDB or SQLite cannot write the lock of the back-end, our shared lock
        // keeps writers away.
        match marker.back_end {
            BackEnd::Lmdb | BackEnd::Sqlite if !dir.can_write()? => dir.lock_shared(),
            _ => Ok(None),
        }
    }

    /// Opens the store of a directory, or creates a store in a missing or empty directory. An
    /// interrupted creation is repeated.
    ///
    /// # Errors
    /// Those of [`open`](Self::open); [`Error::Foreign`] if the directory holds something else.
    pub fn open_or_create(&self, dir: &Path) -> Result<OpenStore> {
        let found = StateDir::of(dir)?;
        if let Some(found) = &found {
            if found.has(MARKER)? {
                return self.open(dir);
            }
            Self::check_empty(found)?;
        }

        // A store that cannot be created is refused before its directory exists.
        self.new_marker(found.as_ref())?;

        create_dirs(dir)?;
        let state_dir = StateDir::open(dir)?;
        let guard = state_dir.lock()?;

        if state_dir.has(MARKER)? {
            // Another process has created the store since the first look, and has closed it.
            drop(guard);
            return self.open(dir);
        }

        let created = self.create(&state_dir);
        if created.is_err() {
            // Best effort: nothing of a failed creation stays. The lock file goes last, while the
            // lock is held.
            let _ = Self::clear(&state_dir);
            let _ = state_dir.remove(MARKER_NEW);
            let _ = state_dir.remove(LOCK);
        }

        Ok(OpenStore { store: created?, _lock: Some(guard), _dir: Some(state_dir) })
    }

    /// Creates the store. The caller holds the lock.
    fn create(&self, dir: &StateDir) -> Result<Store> {
        let marker = self.new_marker(Some(dir))?;
        Self::clear(dir)?;
        marker.begin(dir)?;
        let store = Store::open(self.database(dir, &marker)?, &self.options)?;
        Marker::finish(dir)?;
        Ok(store)
    }

    /// Repairs the store of a directory by taking damaged parts out, and syncs the repair; see
    /// [`Store::repair`].
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and those of [`Store::repair`].
    pub fn repair(&self, dir: &Path, loss: Loss) -> Result<Repaired> {
        let dir = StateDir::open(dir)?;
        let marker = self.marker(&dir)?;
        let _lock = dir.lock()?;

        let path = dir.path(DATABASE);
        if let Some(rule) = damage_of_files(marker.back_end, &path)?.into_iter().next() {
            return Err(Error::Corrupt { path, rule });
        }

        let database = self.database(&dir, &marker)?;

        let repaired = Store::repair(&database, loss);
        // Without durability no commit of the repair was synced.
        let synced = match (&repaired, self.durability) {
            (Ok(done), Durability::None) if !done.is_clean() && !done.was_refused => {
                database.sync()
            }
            _ => Ok(()),
        };

        let closed = database.close();

        // The first failure is the cause of the others.
        let repaired = repaired?;
        synced?;
        closed?;

        Ok(repaired)
    }

    /// Returns the marker of the directory, checked against these options.
    fn marker(&self, dir: &StateDir) -> Result<Marker> {
        let marker = Marker::read_at(dir)?;
        if let Some(wanted) = self.back_end.filter(|wanted| *wanted != marker.back_end) {
            let found = marker.back_end;
            let dir = dir.dir().display();
            return Err(Error::Refused(format!("{dir} has the back-end {found}, not {wanted}")));
        }
        if marker.back_end.has_files() {
            dir.check_database()?;
        }
        Ok(marker)
    }

    /// Returns the marker of a store to be created: what these options ask for, completed by an
    /// interrupted creation.
    fn new_marker(&self, dir: Option<&StateDir>) -> Result<Marker> {
        let begun = dir.map(Marker::begun).transpose()?.flatten();

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
            BackEnd::Cassandra => {
                let cassandra = Some(self.new_cluster(begun)?);
                return Ok(Marker { back_end, redis: None, cassandra });
            }
            _ => return Ok(Marker { back_end, redis: None, cassandra: None }),
        }

        // The prefix of an interrupted creation is kept, so that its keys are found and cleared.
        let urls = self.redis_urls.clone();
        let address = match begun.and_then(|begun| begun.redis) {
            Some(address) if urls.is_empty() => address,
            Some(address) => RedisAddress { urls, ..address },
            None => RedisAddress::new(urls),
        };

        if address.urls.is_empty() {
            return Err(Error::Refused(NO_SERVER.to_owned()));
        }

        // A line feed in a URL would end its line of the marker.
        if address.urls.iter().any(|url| url.contains(char::is_control)) {
            let refused = "a URL of a Redis server has no line feeds and other control characters";
            return Err(Error::Refused(refused.to_owned()));
        }

        let address = RedisAddress { password: self.redis_password.clone(), ..address };
        #[cfg(feature = "redis")]
        redis_options(Some(&address), &INDEXES)?;
        Ok(Marker { back_end, redis: Some(address), cassandra: None })
    }

    /// Returns the address in a cluster of a store to be created. The name of an interrupted
    /// creation is kept, so that its rows are found again.
    fn new_cluster(&self, begun: Option<Marker>) -> Result<CassandraAddress> {
        let begun = begun.and_then(|begun| begun.cassandra);
        let address = match (self.cassandra_url.clone(), begun) {
            (Some(url), Some(begun)) => CassandraAddress { url, ..begun },
            (Some(url), None) => CassandraAddress::new(url),
            (None, Some(begun)) => begun,
            (None, None) => return Err(Error::Refused(NO_CLUSTER.to_owned())),
        };

        // A line feed in a URL would end its line of the marker.
        if address.url.contains(char::is_control) {
            let refused = "a URL of a cluster has no line feeds and other control characters";
            return Err(Error::Refused(refused.to_owned()));
        }
        #[cfg(feature = "cassandra")]
        cassandra_options(Some(&address), &INDEXES).map(drop)?;
        Ok(address)
    }

    /// Opens the database that a marker names.
    fn database(&self, dir: &StateDir, marker: &Marker) -> Result<Arc<dyn Database>> {
        let redis = marker.redis.clone().map(|address| {
            let urls =
                if self.redis_urls.is_empty() { address.urls } else { self.redis_urls.clone() };
            RedisAddress { urls, password: self.redis_password.clone(), ..address }
        });

        let cassandra = marker.cassandra.clone().map(|address| {
            let url = self.cassandra_url.clone().unwrap_or(address.url);
            CassandraAddress { url, ..address }
        });

        let location = Location {
            back_end: marker.back_end,
            disk: dir.disk().clone(),
            path: &dir.path(DATABASE),
            redis: redis.as_ref(),
            cassandra: cassandra.as_ref(),
            indexes: &INDEXES,
        };

        let database = if self.is_read_only {
            location.open_read_only()
        } else {
            location.open(self.durability)
        };

        Ok(database?)
    }

    /// Refuses a directory that holds more than what an interrupted creation leaves.
    fn check_empty(dir: &StateDir) -> Result<()> {
        let is_begun = dir.has(MARKER_NEW)?;
        for (name, _) in dir.entries()? {
            let is_ours = is_begun && (name == MARKER_NEW || name.starts_with(DATABASE));
            if name != LOCK && !is_ours {
                return Err(Error::Foreign { dir: dir.dir().to_owned(), name });
            }
        }
        Ok(())
    }

    /// Removes the database of an interrupted creation, which holds nothing.
    fn clear(dir: &StateDir) -> Result<()> {
        for (name, kind) in dir.entries()? {
            if name.starts_with(DATABASE) {
                dir.remove_all(&dir.path(&name), kind)?;
            }
        }
        Ok(())
    }
}
