//! Faults of a simulated disk: their kinds, and the calls that they hit.
//!
//! Calls are numbered from 0 in the order in which the disk sees them: every call on a disk or file
//! that can fail, and every queued request. [`SimDisk::calls`](crate::sim::sim::SimDisk::calls)
//! tells the next number.

use rustix::io::Errno;

/// A plan of faults; the default is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// A call that fails, or all calls from some call on.
    pub fail: Option<Fault>,
    /// The call at which the power goes. This call may happen in whole, in part or not at all; it
    /// and all later calls fail.
    pub crash_at_call: Option<u64>,
    /// Bytes that all files may occupy together, in blocks of 4 KiB; above that the disk is full.
    pub capacity_bytes: Option<u64>,
    /// Number of files that may be open at once; above that `open` and `lock` fail.
    pub open_files_max: Option<usize>,
}

impl FaultPlan {
    /// A plan of one fault.
    #[must_use]
    pub fn fail(at_call: u64, kind: FaultKind, repeat: Repeat) -> Self {
        Self { fail: Some(Fault { at_call, kind, repeat }), ..Self::default() }
    }

    /// A plan of a loss of power at a call.
    #[must_use]
    pub fn crash_at(call: u64) -> Self {
        Self { crash_at_call: Some(call), ..Self::default() }
    }

    /// A plan of a disk of this size.
    #[must_use]
    pub fn capacity(bytes: u64) -> Self {
        Self { capacity_bytes: Some(bytes), ..Self::default() }
    }
}

/// A fault and its moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Number of the first call that may fail. The fault hits the first call from there on to which
    /// its kind applies.
    pub at_call: u64,
    /// Kind of the fault.
    pub kind: FaultKind,
    /// Repetition of the fault.
    pub repeat: Repeat,
}

/// Repetition of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// One call.
    Once,
    /// Every call from then on to which the kind applies.
    Forever,
}

/// Effect of a fault on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Any call fails with EIO and has no effect.
    Eio,
    /// A call that needs space fails with ENOSPC; a write may have written a first part.
    Enospc,
    /// Any call fails with EINTR and has no effect.
    Eintr,
    /// Any call fails with EAGAIN, as for want of resources, and has no effect.
    Eagain,
    /// A read finds the end of the file too early.
    ShortRead,
    /// A write writes a first part and fails with EIO.
    ShortWrite,
    /// A write writes some of its sectors, drawn from the seed, and fails with EIO.
    TornWrite,
    /// A sync of a file or directory fails with EIO. Each sector, length and name of it is durable
    /// or lost for good, drawn from the seed: reads still see it, and no later sync makes it
    /// durable.
    FailedSync,
    /// A sync of a file or directory succeeds and makes nothing durable: a disk that lies.
    LyingSync,
    /// A read gives one flipped bit, and succeeds.
    BitRot,
    /// A read gives zeros for one of its 512-byte sectors, and succeeds.
    ZeroedSector,
    /// A read gives the bytes of another page of the file, and succeeds. A file of one page has no
    /// other one; the read gives zeros then.
    Misdirected,
}

impl FaultKind {
    /// Every kind that makes a call fail.
    pub const ERRORS: [Self; 8] = [
        Self::Eio,
        Self::Enospc,
        Self::Eintr,
        Self::Eagain,
        Self::ShortRead,
        Self::ShortWrite,
        Self::TornWrite,
        Self::FailedSync,
    ];

    /// Every kind that makes a read give wrong bytes without an error.
    pub const SILENT: [Self; 3] = [Self::BitRot, Self::ZeroedSector, Self::Misdirected];

    /// Whether a call of this class can show the fault.
    pub(crate) fn applies_to(self, class: Class) -> bool {
        // A fault strikes only calls that can show it.
        match self {
            Self::Eio | Self::Eintr | Self::Eagain => true,
            Self::Enospc => matches!(class, Class::Write | Class::Grow),
            Self::ShortRead | Self::BitRot | Self::ZeroedSector | Self::Misdirected => {
                class == Class::Read
            }
            Self::ShortWrite | Self::TornWrite => class == Class::Write,
            Self::FailedSync | Self::LyingSync => class == Class::Sync,
        }
    }

    /// The system's answer to a call that fails.
    pub(crate) fn errno(self) -> Errno {
        match self {
            Self::Enospc => Errno::NOSPC,
            Self::Eintr => Errno::INTR,
            Self::Eagain => Errno::AGAIN,
            _ => Errno::IO,
        }
    }
}

/// Class of calls to which the same faults apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Reads of a file.
    Read,
    /// Writes of a file.
    Write,
    /// Other calls that may need space: new names, greater lengths, reservations.
    Grow,
    /// Syncs.
    Sync,
    /// Everything else.
    Other,
}
