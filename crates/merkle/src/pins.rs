//! Pins: what keeps the objects of a commit from being collected while a tree may still read them.

use std::sync::Arc;

/// A commit, or a tree that was flushed, that somebody may still read from.
#[derive(Debug)]
pub(crate) struct Pin {
    /// The root that is in use.
    pub(crate) root: crate::address::Place,
}

/// The pins of a tree.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pins(Vec<Arc<Pin>>);

impl Pins {
    pub(crate) fn of(pin: Arc<Pin>) -> Self {
        Self(vec![pin])
    }

    /// Adds those of another tree.
    pub(crate) fn join(&mut self, other: &Self) {
        for pin in &other.0 {
            if !self.0.iter().any(|own| Arc::ptr_eq(own, pin)) {
                self.0.push(Arc::clone(pin));
            }
        }
    }
}
