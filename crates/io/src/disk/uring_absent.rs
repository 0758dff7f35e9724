//! Stands in for `uring` where there is no `io_uring`: the probe always says so.

use std::io;
use std::sync::Arc;

use crate::disk::threads::ThreadQueue;

/// The queue over a ring, were there one.
pub(crate) type UringQueue = ThreadQueue;

/// A pool of rings, of which there can be none.
pub(crate) enum RingPool {}

impl RingPool {
    pub(crate) fn probe() -> io::Result<Arc<Self>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn queue(self: &Arc<Self>, _depth: usize) -> io::Result<UringQueue> {
        match **self {}
    }
}
