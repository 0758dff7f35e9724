//! Disk that holds one call until the test releases it, for tests of concurrent operations.
//!
//! No test sleeps: it waits until the call is reached, does what it wants, and opens the gate.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use terrane_io::{Access, Disk, DiskFile, OpenMode, Result};

/// Time limit of a wait; reaching it means that the test is wrong.
const WAIT_MAX: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
enum State {
    #[default]
    Open,
    /// The call of that name on that path, or below it, will wait.
    Armed(&'static str, PathBuf),
    Reached,
}

/// A disk with a gate.
#[derive(Debug)]
pub(crate) struct GateDisk {
    disk: Arc<dyn Disk>,
    gate: Arc<Gate>,
}

#[derive(Debug, Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl GateDisk {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Arc<Self> {
        Arc::new(Self { disk, gate: Arc::default() })
    }

    /// The next call of that name on that path (the new one of a rename), or below it, is to wait.
    pub(crate) fn close(&self, call: &'static str, path: PathBuf) {
        *self.gate.state.lock().unwrap() = State::Armed(call, path);
    }

    /// Waits until the call is made. It goes on when the result is dropped, also by a test that
    /// fails.
    pub(crate) fn wait(&self) -> HeldCall<'_> {
        let state = self.gate.state.lock().unwrap();
        let reached = |state: &mut State| !matches!(state, State::Reached);
        let waited = self.gate.changed.wait_timeout_while(state, WAIT_MAX, reached).unwrap();
        assert!(!waited.1.timed_out(), "the call was never made");
        drop(waited);
        HeldCall(&self.gate)
    }
}

impl Gate {
    fn pass(&self, call: &'static str, path: &Path) {
        let mut state = self.state.lock().unwrap();
        if matches!(&*state, State::Armed(name, at) if *name == call && path.starts_with(at)) {
            *state = State::Reached;
            self.changed.notify_all();
            let closed = |state: &mut State| matches!(state, State::Reached);
            drop(self.changed.wait_while(state, closed).unwrap());
        }
    }
}

/// A call that waits.
#[must_use]
pub(crate) struct HeldCall<'a>(&'a Gate);

impl Drop for HeldCall<'_> {
    fn drop(&mut self) {
        *self.0.state.lock().unwrap() = State::Open;
        self.0.changed.notify_all();
    }
}

impl Disk for GateDisk {
    terrane_io::forward!(
        disk: anchor, absolute, create_dir, remove_dir, remove, hard_link, list, kind, sync_dir,
        lock, lock_shared, is_locked, free_bytes, clock, queue, queue_kind
    );

    fn open(&self, path: &Path, mode: OpenMode, access: Access) -> Result<Arc<dyn DiskFile>> {
        self.gate.pass("open", path);
        let file = self.disk.open(path, mode, access)?;
        Ok(Arc::new(GateFile { file, gate: Arc::clone(&self.gate) }))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.gate.pass("rename", to);
        self.disk.rename(from, to)
    }
}

/// A file of such a disk.
#[derive(Debug)]
struct GateFile {
    file: Arc<dyn DiskFile>,
    gate: Arc<Gate>,
}

impl DiskFile for GateFile {
    terrane_io::forward!(file: path, access, len, set_len, allocate, forget);

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.gate.pass("read", self.path());
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.gate.pass("write", self.path());
        self.file.write_at(bytes, offset)
    }

    fn sync(&self) -> Result<()> {
        self.gate.pass("sync", self.path());
        self.file.sync()
    }

    fn as_any(&self) -> &dyn Any {
        self.file.as_any()
    }
}
