//! What a caller can do about an error: the classes that exit codes are made of.

/// How to react to an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// A check failed or stored bytes are damaged: the data are not what they should be.
    Check,
    /// The input or the request is at fault: correct it and call again.
    Input,
    /// Disk, permissions, another process: mend the environment and call again.
    Environment,
    /// The user asked to stop; the state is that of the last whole block.
    Interrupted,
}

impl Class {
    /// The name used in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Check => "check_failed",
            Self::Input => "bad_input",
            Self::Environment => "environment",
            Self::Interrupted => "interrupted",
        }
    }
}
