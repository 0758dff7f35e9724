//! A server of the S3 protocol on the loopback address, whose requests fail on demand.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder as Connection;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpError};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

pub(crate) const BUCKET: &str = "bucket";
pub(crate) const ACCESS_KEY: &str = "access";
pub(crate) const SECRET_KEY: &str = "a secret of the test";

/// When a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Before,
    After,
}

#[derive(Debug, Default)]
struct Plan {
    /// Requests until the fault.
    left: u64,
    when: Option<When>,
    has_failed: bool,
    overwritten: u64,
}

/// A running server; it ends with this.
#[derive(Debug)]
pub(crate) struct Server {
    address: String,
    plan: Arc<Mutex<Plan>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _root: TempDir,
}

impl Server {
    pub(crate) fn start() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join(BUCKET)).unwrap();
        let files = s3s_fs::FileSystem::new(root.path()).unwrap();
        let mut service = S3ServiceBuilder::new(files);
        service.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let service = service.build();

        let plan: Arc<Mutex<Plan>> = Arc::default();
        let (told, address) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = Arc::clone(&plan);
        let bucket = root.path().join(BUCKET);
        let thread = thread::spawn(move || {
            let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.unwrap().block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                told.send(listener.local_addr().unwrap()).unwrap();
                let serve = serve(listener, service, serving, bucket);
                tokio::select! {
                    () = serve => {}
                    _ = stopped => {}
                }
            });
        });
        let address = format!("http://{}", address.recv().unwrap());
        Self { address, plan, stop: Some(stop), thread: Some(thread), _root: root }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The `nth` request from now on fails.
    pub(crate) fn fail(&self, nth: u64, when: When) {
        let mut plan = self.plan.lock().unwrap();
        plan.left = nth;
        plan.when = Some(when);
        plan.has_failed = false;
    }

    /// Ends the fault; says whether it has come.
    pub(crate) fn heal(&self) -> bool {
        let mut plan = self.plan.lock().unwrap();
        plan.when = None;
        plan.has_failed
    }

    /// Puts over objects that were there, not refused by their condition.
    pub(crate) fn overwritten(&self) -> u64 {
        self.plan.lock().unwrap().overwritten
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

async fn serve(listener: TcpListener, service: S3Service, plan: Arc<Mutex<Plan>>, bucket: PathBuf) {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let service = service.clone();
        let plan = Arc::clone(&plan);
        let bucket = bucket.clone();
        let answer = service_fn(move |request: http::Request<Incoming>| {
            answer(service.clone(), Arc::clone(&plan), bucket.clone(), request)
        });
        tokio::spawn(async move {
            // A client may go away at any time.
            let connection = Connection::new(TokioExecutor::new());
            let _ = connection.serve_connection(TokioIo::new(socket), answer).await;
        });
    }
}

async fn answer(
    service: S3Service,
    plan: Arc<Mutex<Plan>>,
    bucket: PathBuf,
    request: http::Request<Incoming>,
) -> Result<http::Response<Body>, HttpError> {
    let fails = plan.lock().unwrap().next();
    let name = request.uri().path().trim_start_matches('/').to_owned();
    let name = name.strip_prefix(BUCKET).unwrap_or(&name).trim_start_matches('/').to_owned();
    let is_put = request.method() == http::Method::PUT && request.uri().query().is_none();
    let was_there = is_put && bucket.join(&name).exists();
    if fails == Some(When::Before) {
        return Ok(failed());
    }
    let answered = service.call(request.map(Body::from)).await?;
    if was_there && answered.status().is_success() {
        plan.lock().unwrap().overwritten += 1;
    }
    Ok(if fails == Some(When::After) { failed() } else { answered })
}

impl Plan {
    /// Counts a request; says whether it fails, and when.
    fn next(&mut self) -> Option<When> {
        if self.when.is_none() || self.has_failed {
            return None;
        }
        self.left -= 1;
        self.has_failed = self.left == 0;
        self.when.filter(|_| self.has_failed)
    }
}

fn failed() -> http::Response<Body> {
    let mut response = http::Response::new(Body::empty());
    *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
    response
}
