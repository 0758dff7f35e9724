//! The queue of a disk that passes its calls on to another one.

use std::any::Any;
use std::sync::Arc;

use crate::disk::disk::{Completion, DiskFile, IoQueue, Request};

/// The file below one of the disk above; `None` for a file of another disk.
pub(crate) type Below = fn(&dyn Any) -> Option<Arc<dyn DiskFile>>;

/// A queue that hands requests on to that of the disk below, which knows only the files of its own
/// disk.
pub(crate) struct ForwardQueue<P> {
    pub(crate) inner: Box<dyn IoQueue>,
    pub(crate) below: Below,
    /// Told of each request.
    pub(crate) pass: P,
}

impl<P: FnMut(&Request) + Send> IoQueue for ForwardQueue<P> {
    fn push(&mut self, mut request: Request) {
        (self.pass)(&request);
        // A file of another disk goes through as it is.
        if let Some(file) = (self.below)(request.file.as_any()) {
            request.file = file;
        }
        self.inner.push(request);
    }

    fn submit(&mut self) {
        self.inner.submit();
    }

    fn pop(&mut self) -> Option<Completion> {
        self.inner.pop()
    }

    fn poll(&mut self) -> Option<Completion> {
        self.inner.poll()
    }

    fn outstanding(&self) -> usize {
        self.inner.outstanding()
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }
}
