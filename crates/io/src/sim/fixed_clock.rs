//! A disk whose clock stands still, for files whose bytes must not depend on when or after how many
//! calls they were written.
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::disk::disk::Disk;

/// The moment at which it stands: the beginning of the year 2026, and a fraction of a second that
/// shows in every digit.
const MOMENT: Duration = Duration::new(1_767_225_600, 123_456_789);

/// A disk whose clock stands still; another disk does everything else.
#[derive(Debug)]
pub struct FixedClockDisk {
    disk: Arc<dyn Disk>,
    clock: FixedClock,
}

#[derive(Debug)]
struct FixedClock;

impl FixedClockDisk {
    /// Wraps `disk`, with a clock that stands still.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>) -> Arc<Self> {
        Arc::new(Self { disk, clock: FixedClock })
    }
}

impl Clock for FixedClock {
    fn wall(&self) -> Duration {
        MOMENT
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

impl Disk for FixedClockDisk {
    crate::forward!(
        disk: anchor, absolute, open, create_dir, remove_dir, remove, rename, hard_link, list,
        kind, sync_dir, lock, lock_shared, is_locked, free_bytes, allocated_bytes, queue,
        queue_kind
    );

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }
}
