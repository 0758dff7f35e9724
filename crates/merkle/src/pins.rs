//! Pins: what keeps the objects of a commit from being collected while a tree may still read them.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::address::Place;

/// A root that somebody may still read from: of a commit, or of a tree that was flushed.
#[derive(Debug)]
pub(crate) struct Pin {
    pub(crate) root: Place,
}

/// The pins of a tree and its clones.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pins(Arc<Mutex<Vec<Arc<Pin>>>>);

impl Pins {
    pub(crate) fn add(&self, pin: Arc<Pin>) {
        let mut own = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !own.iter().any(|held| Arc::ptr_eq(held, &pin)) {
            own.push(pin);
        }
    }

    /// Pins of its own, of nothing but the one of these with that root; none if there is none.
    pub(crate) fn only(&self, root: Place) -> Option<Self> {
        let own = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pin = own.iter().rfind(|pin| pin.root == root)?;
        Some(Self(Arc::new(Mutex::new(vec![Arc::clone(pin)]))))
    }

    /// Adds those of another tree.
    pub(crate) fn join(&self, other: &Self) {
        if Arc::ptr_eq(&self.0, &other.0) {
            return;
        }
        let others = other.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for pin in others {
            self.add(pin);
        }
    }
}

/// All pins of a store.
#[derive(Debug, Default)]
pub(crate) struct Pinned(Mutex<Vec<Weak<Pin>>>);

impl Pinned {
    pub(crate) fn pin(&self, root: Place) -> Arc<Pin> {
        let pin = Arc::new(Pin { root });
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() == all.capacity() {
            all.retain(|pin| pin.strong_count() > 0);
        }
        all.push(Arc::downgrade(&pin));
        pin
    }

    /// The roots that are in use.
    pub(crate) fn roots(&self) -> Vec<Place> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(|pin| Some(pin.upgrade()?.root)).collect()
    }
}
