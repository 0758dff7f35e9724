//! An object store whose requests are counted, fail, wait for others, or list an old state.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt as _, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};

/// When a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// Once, before its effect.
    Before,
    /// Once, after its effect: the answer is lost.
    After,
    /// It and all that follow, before their effect.
    FromThenOn,
}

/// Kind of a request.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Put,
    Get,
    List,
    Delete,
}

type Interruption = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Plan {
    /// Requests until the fault.
    left: u64,
    when: Option<When>,
    interruption: Option<Interruption>,
    has_failed: bool,
    /// Names that lists show.
    frozen: Option<Vec<ObjectMeta>>,
}

/// Wraps a store; see the head of the file.
pub(crate) struct FaultyStore {
    inner: Arc<dyn ObjectStore>,
    plan: Mutex<Plan>,
    /// Requests by kind.
    requests: [AtomicU64; 4],
    overwritten: AtomicU64,
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultyStore")
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty store")
    }
}

fn failed<T>() -> Result<T> {
    Err(Error::Generic { store: "faulty", source: "the connection broke".into() })
}

fn block_on<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let run =
        move || tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future);
    std::thread::spawn(run).join().unwrap()
}

impl FaultyStore {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>) -> Arc<Self> {
        let (plan, requests) = (Mutex::default(), Default::default());
        Arc::new(Self { inner, plan, requests, overwritten: AtomicU64::new(0) })
    }

    /// Puts, gets, lists and deletions so far; a put of parts is one.
    pub(crate) fn requests(&self) -> [u64; 4] {
        [0, 1, 2, 3].map(|kind: usize| self.requests[kind].load(Ordering::Relaxed))
    }

    pub(crate) fn inner(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.inner)
    }

    /// The `nth` request from now on fails.
    pub(crate) fn fail(&self, nth: u64, when: When) {
        *self.plan.lock().unwrap() = Plan { left: nth, when: Some(when), ..Plan::default() };
    }

    /// Before the `nth` request from now on, something else happens.
    pub(crate) fn interrupt(&self, nth: u64, interruption: Interruption) {
        *self.plan.lock().unwrap() =
            Plan { left: nth, interruption: Some(interruption), ..Plan::default() };
    }

    /// Ends the fault; says whether it has come.
    pub(crate) fn heal(&self) -> bool {
        std::mem::take(&mut *self.plan.lock().unwrap()).has_failed
    }

    /// Puts over objects that were there.
    pub(crate) fn overwritten(&self) -> u64 {
        self.overwritten.load(Ordering::Relaxed)
    }

    /// Lists show what is there now, or again what is there.
    pub(crate) fn freeze_lists(&self, frozen: bool) {
        let inner = self.inner();
        let metas = block_on(async move { inner.list(None).collect::<Vec<_>>().await });
        let metas = metas.into_iter().map(|meta| meta.unwrap()).collect();
        self.plan.lock().unwrap().frozen = frozen.then_some(metas);
    }

    /// Lists show nothing.
    pub(crate) fn empty_lists(&self) {
        self.plan.lock().unwrap().frozen = Some(Vec::new());
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let inner = self.inner();
        let metas = block_on(async move { inner.list(None).collect::<Vec<_>>().await });
        metas.into_iter().map(|meta| meta.unwrap().location.to_string()).collect()
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        let inner = self.inner();
        let path = Path::from(name);
        block_on(async move { inner.get(&path).await.unwrap().bytes().await.unwrap().to_vec() })
    }

    /// Changes an object behind the back of everybody.
    pub(crate) fn replace(&self, name: &str, bytes: Option<&[u8]>) {
        let inner = self.inner();
        let path = Path::from(name);
        let bytes = bytes.map(<[u8]>::to_vec);
        block_on(async move {
            match bytes {
                Some(bytes) => drop(inner.put(&path, bytes.into()).await.unwrap()),
                None => inner.delete(&path).await.unwrap(),
            }
        });
    }

    /// Counts a request; says whether it fails, and when.
    fn request(&self, kind: Kind) -> Option<When> {
        self.requests[kind as usize].fetch_add(1, Ordering::Relaxed);
        let mut plan = self.plan.lock().unwrap();
        if plan.when.is_none() && plan.interruption.is_none() {
            return None;
        }
        if plan.has_failed {
            return plan.when.filter(|when| *when == When::FromThenOn);
        }
        plan.left -= 1;
        if plan.left > 0 {
            return None;
        }
        plan.has_failed = true;
        if let Some(interruption) = plan.interruption.take() {
            drop(plan);
            // On a thread of its own: it waits for requests of its own.
            std::thread::spawn(interruption).join().unwrap();
            return None;
        }
        plan.when
    }

    async fn faulty<T>(&self, kind: Kind, effect: impl Future<Output = Result<T>>) -> Result<T> {
        match self.request(kind) {
            None => effect.await,
            Some(When::After) => {
                drop(effect.await);
                failed()
            }
            Some(_) => failed(),
        }
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        if options.mode != PutMode::Create && self.inner.head(location).await.is_ok() {
            self.overwritten.fetch_add(1, Ordering::Relaxed);
        }
        self.faulty(Kind::Put, self.inner.put_opts(location, payload, options)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        if self.inner.head(location).await.is_ok() {
            self.overwritten.fetch_add(1, Ordering::Relaxed);
        }
        self.faulty(Kind::Put, self.inner.put_multipart_opts(location, options)).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.faulty(Kind::Get, self.inner.get_opts(location, options)).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let fails = self.request(Kind::Delete);
        let inner = Arc::clone(&self.inner);
        let deleted = async move {
            let answers = match fails {
                None => inner.delete_stream(locations).collect::<Vec<_>>().await,
                Some(when) => {
                    if when == When::After {
                        drop(inner.delete_stream(locations).collect::<Vec<_>>().await);
                    }
                    vec![failed()]
                }
            };
            futures_util::stream::iter(answers)
        };
        futures_util::stream::once(deleted).flatten().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        if self.request(Kind::List).is_some() {
            return futures_util::stream::once(async { failed() }).boxed();
        }
        let frozen = self.plan.lock().unwrap().frozen.clone();
        let Some(frozen) = frozen else { return self.inner.list(prefix) };
        let prefix = prefix.cloned().unwrap_or_default();
        let shown = frozen.into_iter().filter(move |meta| meta.location.prefix_matches(&prefix));
        futures_util::stream::iter(shown.map(Ok)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
