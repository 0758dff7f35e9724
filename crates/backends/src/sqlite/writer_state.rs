//! State of a writer: whether its transaction has changed anything, and why it cannot go on.

use terrane_kv::{Error, Result};

use super::error::{NAME, back_end_error};

/// Whether a transaction has changed anything, and whether it can go on.
pub(super) struct WriterState {
    pub(super) changed: bool,
    /// `Some` after a call that failed; what of it still can be told.
    failed: Option<Failed>,
}

#[derive(Clone, Copy)]
enum Failed {
    Full,
    Poisoned,
    Other,
}

impl WriterState {
    pub(super) fn new() -> Self {
        Self { changed: false, failed: None }
    }

    pub(super) fn check(&self) -> Result<()> {
        match self.failed {
            None => Ok(()),
            Some(Failed::Full) => Err(Error::StoreFull {
                back_end: NAME,
                limit: "an earlier call of this writer found no room".into(),
                source: None,
            }),
            Some(Failed::Poisoned) => Err(Error::Poisoned { back_end: NAME }),
            Some(Failed::Other) => {
                Err(back_end_error("transaction", "an earlier call of this writer failed"))
            }
        }
    }

    pub(super) fn fail(&mut self, error: &Error) {
        self.failed = Some(match error {
            Error::StoreFull { .. } => Failed::Full,
            Error::Poisoned { .. } => Failed::Poisoned,
            _ => Failed::Other,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_in_a_writer_says_so_to_its_later_calls() {
        let mut state = WriterState::new();
        assert!(state.check().is_ok());
        state.fail(&Error::Poisoned { back_end: NAME });
        assert!(matches!(state.check(), Err(Error::Poisoned { .. })));
    }
}
