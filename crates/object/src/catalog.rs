//! The catalog: which backups a bucket has, which uploads run, and how both change.
//!
//! Catalogs are numbered objects. The newest one is the state; a writer reads it and creates the
//! next number, which a conditional put lets one writer do. A writer that finds the number taken
//! reads again. If the answer of the put is lost, the writer reads the number and finds its own
//! catalog or another one.
//!
//! **Uploads.** An uploader enters itself before it puts its first object, and leaves in the
//! catalog that names its backup. So an object without a backup is garbage exactly if the upload in
//! its name is not entered.
//!
//! **Stale lists.** A list only tells where to begin; from there a reader asks for the next numbers
//! one by one, since reads of single objects are never stale. Old catalogs are deleted in ascending
//! order and never near the newest one. So a writer whose predecessor is still there after its put
//! has not used a number again.
//!
//! Invariants: a catalog's number is one above its predecessor's. Backups stand in the order in
//! which they were made.

#![doc = include_str!("../../../docs/format/bucket.md")]

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::bucket::{Bucket, Put};
use crate::error::{Error, Result};

/// Version of all objects that are not copies of files.
pub(crate) const BUCKET_VERSION: u64 = 1;

/// Name of the object that says whose bucket it is.
pub(crate) const MARKER: &str = "terrane.json";

/// Folder of the catalogs.
pub(crate) const CATALOGS: &str = "catalog";

/// Newest catalogs that are never deleted.
pub(crate) const CATALOGS_KEPT: u64 = 64;

/// Attempts to change the catalog against other writers.
const ATTEMPTS: u32 = 64;

/// Bytes of the longest object that is read into memory as a whole.
const DOCUMENT_BYTES_MAX: u64 = 256 << 20;

/// A backup in a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct BackupInfo {
    /// Name of the backup; stays when later commits are added.
    pub id: String,
    /// First commit that can be restored.
    pub base_commit: u64,
    /// Last commit that can be restored, and every one in between.
    pub commit: u64,
    /// Seconds since the Unix epoch when the base was uploaded.
    pub created_unix_s: u64,
    /// Bytes of all files of the backup, whether or not other backups share them.
    pub bytes: u64,
    /// Files of the backup.
    pub files: u64,
    /// Name of the manifest.
    pub manifest: String,
    /// SHA-256 of the manifest.
    pub manifest_sha256: String,
}

/// An upload that runs, or was interrupted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunningUpload {
    pub(crate) id: String,
    pub(crate) started_unix_s: u64,
}

/// State of a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Catalog {
    /// Its number.
    pub(crate) number: u64,
    /// Fingerprint of the store.
    pub(crate) store: String,
    /// Drawn by the writer, so that no two writers put equal bytes.
    pub(crate) writer: String,
    pub(crate) backups: Vec<BackupInfo>,
    pub(crate) uploads: Vec<RunningUpload>,
}

/// Says whose bucket it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Marker {
    store: String,
}

impl Catalog {
    pub(crate) fn upload(&self, id: &str) -> Option<&RunningUpload> {
        self.uploads.iter().find(|upload| upload.id == id)
    }

    fn check(&self, key: &str, number: u64) -> Result<()> {
        let ids: BTreeSet<&str> = self.backups.iter().map(|backup| backup.id.as_str()).collect();
        let is_whole = self.number == number
            && ids.len() == self.backups.len()
            && self.backups.iter().all(|backup| backup.base_commit <= backup.commit);
        if is_whole { Ok(()) } else { Err(Error::damaged(key, "its parts contradict each other")) }
    }
}

/// Seconds since the Unix epoch.
pub(crate) fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A name that nobody else has: 64 random bits.
pub(crate) fn random_id() -> String {
    // Each state is seeded anew from the system's randomness, once for each thread, and counted.
    format!("{:016x}", RandomState::new().hash_one((std::process::id(), now_unix_s())))
}

/// SHA-256 in hexadecimal.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to memory cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Encodes a document: a line with kind, version and checksum, then JSON.
pub(crate) fn encode_document<T: Serialize>(kind: &str, value: &T) -> Bytes {
    let body = serde_json::to_string(value).expect("texts and numbers are JSON");
    let sum = sha256_hex(body.as_bytes());
    Bytes::from(format!("{kind} {BUCKET_VERSION} {sum}\n{body}\n"))
}

/// Decodes what [`encode_document`] made.
///
/// # Errors
/// [`Error::Damaged`], [`Error::UnknownVersion`].
pub(crate) fn decode_document<T: DeserializeOwned>(
    kind: &str,
    key: &str,
    bytes: &[u8],
) -> Result<T> {
    let broken = |reason: &str| Error::damaged(key, reason);
    if bytes.len() as u64 > DOCUMENT_BYTES_MAX {
        return Err(broken("longer than any document"));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| broken("not UTF-8"))?;
    let (head, body) = text.split_once('\n').ok_or_else(|| broken("no first line"))?;
    let mut words = head.split(' ');
    if words.next() != Some(kind) {
        return Err(broken("another kind of object"));
    }
    let found = words.next().and_then(|word| word.parse().ok());
    let found: u64 = found.ok_or_else(|| broken("no version in the first line"))?;
    let sum = words.next().ok_or_else(|| broken("no checksum in the first line"))?;
    let body = body.strip_suffix('\n').ok_or_else(|| broken("it ends early"))?;
    if words.next().is_some() || sha256_hex(body.as_bytes()) != sum {
        return Err(broken("the checksum is wrong"));
    }
    if found != BUCKET_VERSION {
        let newest = BUCKET_VERSION;
        return Err(Error::UnknownVersion { key: key.to_owned(), found, newest });
    }
    serde_json::from_str(body).map_err(|error| broken(&error.to_string()))
}

/// First word of a catalog.
pub(crate) const CATALOG_KIND: &str = "terrane-catalog";

/// First word of the marker.
pub(crate) const MARKER_KIND: &str = "terrane-bucket";

pub(crate) fn catalog_key(number: u64) -> String {
    format!("{CATALOGS}/{number:020}.json")
}

pub(crate) fn catalog_number(key: &str) -> Option<u64> {
    let name = key.strip_prefix(CATALOGS)?.strip_prefix('/')?.strip_suffix(".json")?;
    let number = name.parse().ok()?;
    (catalog_key(number) == key).then_some(number)
}

impl Bucket {
    /// The newest catalog; `None` in a bucket that has none.
    ///
    /// Cost: two reads and a list, and a read for each catalog that the list lacks.
    ///
    /// # Errors
    /// [`Error::StaleList`], [`Error::Request`], [`Error::Damaged`], [`Error::UnknownVersion`].
    pub(crate) fn newest_catalog(&self) -> Result<Option<Catalog>> {
        let listed = self.list(CATALOGS)?;
        let listed = listed.iter().filter_map(|object| catalog_number(&object.key)).max();
        let found = self.catalog(listed.unwrap_or(1))?;

        // Nobody puts the marker before the first catalog, or the second catalog before the marker.
        let Some(mut catalog) = found else {
            return match (listed, self.get(MARKER)?) {
                (None, None) => Ok(None),
                _ => Err(self.stale()),
            };
        };
        // Catalogs behind the first may have been deleted, so an empty list gives no place to go on
        // from.
        if listed.is_none() && self.get(MARKER)?.is_some() && self.catalog(2)?.is_none() {
            return Err(self.stale());
        }
        while let Some(next) = self.catalog(catalog.number + 1)? {
            catalog = next;
        }
        Ok(Some(catalog))
    }

    /// The newest catalog of a bucket that must have a backup.
    ///
    /// # Errors
    /// [`Error::NoBackup`], and those of [`newest_catalog`](Self::newest_catalog).
    pub(crate) fn catalog_with_backups(&self) -> Result<Catalog> {
        let catalog = self.newest_catalog()?.filter(|catalog| !catalog.backups.is_empty());
        catalog.ok_or_else(|| Error::NoBackup { address: self.address().to_owned() })
    }

    fn stale(&self) -> Error {
        Error::StaleList { address: self.address().to_owned() }
    }

    fn catalog(&self, number: u64) -> Result<Option<Catalog>> {
        let key = catalog_key(number);
        let Some(bytes) = self.get(&key)? else { return Ok(None) };
        let catalog: Catalog = decode_document(CATALOG_KIND, &key, &bytes)?;
        catalog.check(&key, number)?;
        Ok(Some(catalog))
    }

    /// Creates the first catalog for a store, and the marker.
    ///
    /// # Errors
    /// [`Error::ForeignStore`], [`Error::Request`].
    pub(crate) fn make_catalog(&self, store: &str) -> Result<Catalog> {
        let mut found = self.newest_catalog()?;
        if found.is_none() {
            let first = Catalog {
                number: 1,
                store: store.to_owned(),
                writer: random_id(),
                backups: Vec::new(),
                uploads: Vec::new(),
            };
            self.put_new(&catalog_key(1), &encode_document(CATALOG_KIND, &first))?;
            // Another writer's, if it came first.
            found = self.newest_catalog()?;
        }
        let found = found.ok_or_else(|| self.stale())?;
        if found.store != store {
            return Err(Error::ForeignStore { address: self.address().to_owned() });
        }
        if found.number == 1 {
            let marker = encode_document(MARKER_KIND, &Marker { store: store.to_owned() });
            self.put_new(MARKER, &marker)?;
        }
        Ok(found)
    }

    /// Replaces the newest catalog by what `change` makes of it. `change` may be called again, for
    /// a newer catalog.
    ///
    /// Cost: as [`newest_catalog`](Self::newest_catalog), a put and a read, for each attempt.
    ///
    /// # Errors
    /// Those of `change`; [`Error::Contention`], [`Error::Request`] (the change was made or not),
    /// [`Error::StaleList`].
    pub(crate) fn change_catalog(
        &self,
        change: &mut dyn FnMut(&Catalog) -> Result<Catalog>,
    ) -> Result<Catalog> {
        for _ in 0..ATTEMPTS {
            let old = self.newest_catalog()?;
            let old = old.ok_or_else(|| Error::NoBackup { address: self.address().to_owned() })?;
            let next = Catalog { number: old.number + 1, writer: random_id(), ..change(&old)? };
            let key = catalog_key(next.number);
            next.check(&key, old.number + 1)?;

            if self.put_new(&key, &encode_document(CATALOG_KIND, &next))? == Put::Done {
                // Catalogs are deleted in ascending order, so this number is new if the one before
                // it is still there.
                if self.len_of(&catalog_key(old.number))?.is_none() {
                    return Err(self.stale());
                }
                return Ok(next);
            }
        }
        Err(Error::Contention { address: self.address().to_owned(), attempts: ATTEMPTS })
    }

    /// The backups of the bucket, in the order in which they were made.
    ///
    /// Cost: two reads and a list.
    ///
    /// # Errors
    /// [`Error::StaleList`], [`Error::Request`], [`Error::Damaged`], [`Error::UnknownVersion`].
    pub fn backups(&self) -> Result<Vec<BackupInfo>> {
        Ok(self.newest_catalog()?.map(|catalog| catalog.backups).unwrap_or_default())
    }
}
