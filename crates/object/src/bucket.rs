//! A bucket: a prefix in object storage, with synchronous requests that are counted.
//!
//! Names of objects are relative to the prefix. Writes put an object under a free name; nothing is
//! overwritten. A write whose answer is lost is resolved by reading the name again.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::path::Path;
use object_store::{
    GetOptions, MultipartUpload, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload,
};

use crate::address::resolve;
use crate::error::{Error, Result};
use crate::runtime::{Pending, Runtime};

/// Requests in flight of one call.
pub(crate) const IN_FLIGHT: usize = 8;

/// Smallest part of a large object. S3 takes no part below 5 MiB but the last.
const PART_BYTES: u64 = 8 << 20;

/// Most parts of an object. S3 takes 10,000.
const PARTS_MAX: u64 = 9_000;

/// A prefix in object storage. See the [crate](crate).
///
/// Cheap to clone; clones share the thread of requests and the counters.
#[derive(Debug, Clone)]
pub struct Bucket {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    address: String,
    runtime: Runtime,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    puts: AtomicU64,
    gets: AtomicU64,
    lists: AtomicU64,
    deletes: AtomicU64,
}

/// Numbers of requests, which services charge for. Retries of the client are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[non_exhaustive]
pub struct Requests {
    /// Writes: objects, and the beginning, the parts and the end of large ones.
    pub puts: u64,
    /// Reads of objects, of ranges of them, and of their length.
    pub gets: u64,
    /// Lists; a service splits a long one into pages of 1,000 names, each a request.
    pub lists: u64,
    /// Deletions.
    pub deletes: u64,
}

/// Outcome of a write under a name that was thought free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    /// The object is stored as given.
    Done,
    /// Another object has the name.
    Taken,
}

/// An object in a list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Listed {
    /// The name, relative to the prefix.
    pub(crate) key: String,
    pub(crate) bytes: u64,
}

impl Bucket {
    /// Opens the bucket of an [address](crate): `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`,
    /// `az://CONTAINER/PREFIX` or `file:///DIR`. Credentials come from the environment. The
    /// directory of a `file://` address is made if it is missing.
    ///
    /// Cost: no request.
    ///
    /// # Errors
    /// [`Error::Address`], [`Error::Start`].
    pub fn open(address: &str) -> Result<Self> {
        let resolved = resolve(address, true)?;
        Self::with(resolved.store, resolved.prefix, address)
    }

    /// Uses any object store, under a prefix. `address` stands in messages.
    ///
    /// # Errors
    /// [`Error::Start`], [`Error::Address`] if the prefix is no path.
    pub fn of_store(store: Arc<dyn ObjectStore>, prefix: &str, address: &str) -> Result<Self> {
        let prefix = Path::parse(prefix).map_err(|error| Error::Address {
            address: address.to_owned(),
            reason: error.to_string(),
        })?;
        Self::with(store, prefix, address)
    }

    fn with(store: Arc<dyn ObjectStore>, prefix: Path, address: &str) -> Result<Self> {
        let runtime = Runtime::start()?;
        let address = address.to_owned();
        let counters = Counters::default();
        Ok(Self { inner: Arc::new(Inner { store, prefix, address, runtime, counters }) })
    }

    /// The address, for messages.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.inner.address
    }

    /// Requests since the bucket was opened.
    #[must_use]
    pub fn requests(&self) -> Requests {
        // Relaxed: the counters order nothing.
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { puts, gets, lists, deletes } = &self.inner.counters;
        Requests {
            puts: count(puts),
            gets: count(gets),
            lists: count(lists),
            deletes: count(deletes),
        }
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.inner.runtime
    }

    fn path(&self, key: &str) -> Path {
        key.split('/').fold(self.inner.prefix.clone(), Path::join)
    }

    fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn failed(call: &'static str, key: &str) -> impl Fn(object_store::Error) -> Error + use<> {
        let key = key.to_owned();
        move |error| match error {
            object_store::Error::NotFound { .. } => Error::Missing { key: key.clone() },
            error => Error::Request { call, key: key.clone(), source: Arc::new(error) },
        }
    }

    /// Reads an object; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Request`].
    pub(crate) fn get(&self, key: &str) -> Result<Option<Bytes>> {
        Self::count(&self.inner.counters.gets);
        let store = Arc::clone(&self.inner.store);
        let path = self.path(key);
        let read = async move { store.get(&path).await?.bytes().await };
        match self.runtime().wait("get", read)? {
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            read => read.map(Some).map_err(Self::failed("get", key)),
        }
    }

    /// Reads `len` bytes of an object from `offset` on.
    pub(crate) fn get_range(
        &self,
        key: &str,
        offset: u64,
        len: u64,
    ) -> impl Future<Output = Result<Bytes>> + Send + use<> {
        Self::count(&self.inner.counters.gets);
        let store = Arc::clone(&self.inner.store);
        let path = self.path(key);
        let key = key.to_owned();
        async move {
            let bytes = store
                .get_range(&path, offset..offset + len)
                .await
                .map_err(Self::failed("get", &key))?;
            if bytes.len() as u64 == len {
                return Ok(bytes);
            }
            let found = offset + bytes.len() as u64;
            Err(Error::damaged(&key, format!("it ends at byte {found}, before {}", offset + len)))
        }
    }

    /// Length of an object; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Request`].
    pub(crate) fn len_of(&self, key: &str) -> Result<Option<u64>> {
        Self::count(&self.inner.counters.gets);
        let store = Arc::clone(&self.inner.store);
        let path = self.path(key);
        let head = async move { store.get_opts(&path, GetOptions::new().with_head(true)).await };
        match self.runtime().wait("head", head)? {
            Ok(found) => Ok(Some(found.meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(Self::failed("head", key)(error)),
        }
    }

    /// Objects below a folder, in the order of their names. The list may be older than the objects.
    ///
    /// # Errors
    /// [`Error::Request`].
    pub(crate) fn list(&self, folder: &str) -> Result<Vec<Listed>> {
        Self::count(&self.inner.counters.lists);
        let store = Arc::clone(&self.inner.store);
        let path = self.path(folder);
        let list = async move { store.list(Some(&path)).try_collect::<Vec<_>>().await };
        let listed = match self.runtime().wait("list", list)? {
            // Of a directory that nobody has made.
            Err(object_store::Error::NotFound { .. }) => Vec::new(),
            listed => listed.map_err(Self::failed("list", folder))?,
        };

        let prefix = self.inner.prefix.as_ref();
        let mut objects: Vec<Listed> = listed
            .into_iter()
            .filter_map(|meta| {
                let key = meta.location.as_ref().strip_prefix(prefix)?;
                let key = key.strip_prefix('/').unwrap_or(key).to_owned();
                Some(Listed { key, bytes: meta.size })
            })
            .collect();
        objects.sort();
        Ok(objects)
    }

    /// Deletes an object; one that is not there counts as deleted.
    ///
    /// # Errors
    /// [`Error::Request`].
    pub(crate) fn delete(&self, key: &str) -> Result<()> {
        Self::count(&self.inner.counters.deletes);
        let store = Arc::clone(&self.inner.store);
        let path = self.path(key);
        let delete = async move { store.delete(&path).await };
        match self.runtime().wait("delete", delete)? {
            Err(object_store::Error::NotFound { .. }) | Ok(()) => Ok(()),
            Err(error) => Err(Self::failed("delete", key)(error)),
        }
    }

    /// Puts a small object under a name that is free, unless it is taken. Reads the name again if
    /// the answer is lost.
    ///
    /// # Errors
    /// [`Error::Request`]; nothing or the whole object is there then.
    pub(crate) fn put_new(&self, key: &str, bytes: &Bytes) -> Result<Put> {
        let put = self.put_request(key, bytes.clone());
        match self.runtime().wait("put", put)? {
            Ok(()) => Ok(Put::Done),
            Err(error) => {
                // An earlier attempt, of the client's retries too, may have stored it.
                match self.get(key) {
                    Ok(Some(there)) if there == *bytes => Ok(Put::Done),
                    Ok(Some(_)) => Ok(Put::Taken),
                    Ok(None) | Err(_) => Err(Self::failed("put", key)(error)),
                }
            }
        }
    }

    fn put_request(
        &self,
        key: &str,
        bytes: Bytes,
    ) -> impl Future<Output = object_store::Result<()>> + Send + use<> {
        Self::count(&self.inner.counters.puts);
        let store = Arc::clone(&self.inner.store);
        let path = self.path(key);
        async move {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            store.put_opts(&path, PutPayload::from_bytes(bytes), options).await.map(drop)
        }
    }

    /// Begins to put an object of `bytes` bytes under a name that nobody else uses.
    pub(crate) fn writer(&self, key: String, bytes: u64) -> ObjectWriter {
        ObjectWriter {
            bucket: self.clone(),
            part_bytes: PART_BYTES.max(bytes.div_ceil(PARTS_MAX)) as usize,
            key,
            buffer: Vec::new(),
            written: 0,
            upload: None,
            parts: VecDeque::new(),
        }
    }
}

/// An object being put, part by part. Up to [`IN_FLIGHT`] parts are in flight.
///
/// Invariant: the object appears as a whole with [`finish`](Self::finish), or never.
#[derive(Debug)]
pub(crate) struct ObjectWriter {
    bucket: Bucket,
    key: String,
    part_bytes: usize,
    buffer: Vec<u8>,
    written: u64,
    upload: Option<Box<dyn MultipartUpload>>,
    parts: VecDeque<Pending<object_store::Result<()>>>,
}

impl ObjectWriter {
    /// Adds bytes.
    ///
    /// # Errors
    /// [`Error::Request`]; the upload was given up then.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.written += bytes.len() as u64;
        while !bytes.is_empty() {
            let room = self.part_bytes - self.buffer.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() == self.part_bytes {
                let sent = self.send();
                if sent.is_err() {
                    self.abort();
                }
                sent?;
            }
        }
        Ok(())
    }

    /// Sends the buffer as a part.
    fn send(&mut self) -> Result<()> {
        let failed = Bucket::failed("put", &self.key);
        if self.upload.is_none() {
            Bucket::count(&self.bucket.inner.counters.puts);
            let store = Arc::clone(&self.bucket.inner.store);
            let path = self.bucket.path(&self.key);
            let begin = async move { store.put_multipart(&path).await };
            self.upload = Some(self.bucket.runtime().wait("put", begin)?.map_err(&failed)?);
        }
        let Some(upload) = &mut self.upload else { return Ok(()) };

        Bucket::count(&self.bucket.inner.counters.puts);
        let bytes = Bytes::from(std::mem::take(&mut self.buffer));
        let part = upload.put_part(PutPayload::from_bytes(bytes));
        self.parts.push_back(self.bucket.runtime().spawn(part));
        while self.parts.len() > IN_FLIGHT {
            self.take_part()?;
        }
        Ok(())
    }

    fn take_part(&mut self) -> Result<()> {
        let Some(part) = self.parts.pop_front() else { return Ok(()) };
        part.wait("put")?.map_err(Bucket::failed("put", &self.key))
    }

    /// Ends the object, which is stored when this returns. Returns its name and length.
    ///
    /// # Errors
    /// [`Error::Request`]; nothing or the whole object is there then.
    pub(crate) fn finish(mut self) -> Result<(String, u64)> {
        let finished = self.finish_parts();
        if finished.is_err() {
            self.abort();
        }
        finished.map(|()| (std::mem::take(&mut self.key), self.written))
    }

    fn finish_parts(&mut self) -> Result<()> {
        if self.upload.is_none() {
            let bytes = Bytes::from(std::mem::take(&mut self.buffer));
            return match self.bucket.put_new(&self.key, &bytes)? {
                Put::Done => Ok(()),
                Put::Taken => Err(Error::damaged(&self.key, "somebody else has used this name")),
            };
        }

        if !self.buffer.is_empty() {
            self.send()?;
        }
        while !self.parts.is_empty() {
            self.take_part()?;
        }

        Bucket::count(&self.bucket.inner.counters.puts);
        let Some(mut upload) = self.upload.take() else { return Ok(()) };
        let complete = async move {
            let completed = upload.complete().await;
            (upload, completed)
        };
        let (upload, completed) = self.bucket.runtime().wait("put", complete)?;
        let Err(error) = completed else { return Ok(()) };

        // The answer may be lost, and the object there.
        if self.bucket.len_of(&self.key).is_ok_and(|len| len == Some(self.written)) {
            return Ok(());
        }
        self.upload = Some(upload);
        Err(Bucket::failed("put", &self.key)(error))
    }

    /// Gives the upload up, so that the service keeps none of its parts. The first error is the one
    /// to report; parts that stay are removed by a rule of the bucket.
    fn abort(&mut self) {
        self.parts.clear();
        if let Some(mut upload) = self.upload.take() {
            Bucket::count(&self.bucket.inner.counters.deletes);
            let _ = self.bucket.runtime().wait("abort", async move { upload.abort().await });
        }
    }
}
