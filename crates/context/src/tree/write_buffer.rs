//! Write buffer: values bound in a tree that are not in its nodes yet. A value that a block writes
//! again and again, such as a counter, goes into the nodes once.
//!
//! Invariant: a buffered binding changes nothing but itself: its path has a value, or nothing in a
//! directory that exists. So no buffered path lies on the way of another, the nodes answer all
//! other questions, and applying the buffer needs no I/O.

use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, OnceLock};

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::tree::node::Value;

/// Capacity of the buffer, in values.
pub(crate) const WRITE_BUFFER_MAX: usize = 1 << 14;

/// Table of buffered values by their paths. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct WriteBuffer {
    table: HashTable<BufferedValue>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug)]
struct BufferedValue {
    hash: u64,
    /// Each step behind its length.
    path: Box<[u8]>,
    value: Arc<Value>,
}

impl BufferedValue {
    fn is_at(&self, path: &[&[u8]]) -> bool {
        let mut rest = &*self.path;
        path.iter().all(|step| match rest.split_first() {
            Some((&len, after)) if usize::from(len) == step.len() => {
                let (own, after) = after.split_at(step.len());
                rest = after;
                own == *step
            }
            _ => false,
        }) && rest.is_empty()
    }

    /// Steps of the path.
    fn steps(&self) -> Vec<&[u8]> {
        let mut rest = &*self.path;
        let mut steps = Vec::new();
        while let Some((&len, after)) = rest.split_first() {
            let (step, after) = after.split_at(usize::from(len));
            steps.push(step);
            rest = after;
        }
        steps
    }
}

impl WriteBuffer {
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    fn hash(&self, path: &[&[u8]]) -> u64 {
        let mut hasher = self.hasher.build_hasher();

        // The lengths keep `a/bc` and `ab/c` apart.
        for step in path {
            hasher.write(step);
            hasher.write_u8(step.len() as u8);
        }
        hasher.finish()
    }

    /// Returns the buffered value at `path`.
    pub(crate) fn get(&self, path: &[&[u8]]) -> Option<&Arc<Value>> {
        if self.table.is_empty() {
            return None;
        }
        let bound = self.table.find(self.hash(path), |bound| bound.is_at(path))?;
        Some(&bound.value)
    }

    /// Replaces the value at `path` if one is buffered, and returns whether it differs; otherwise
    /// returns the value.
    pub(crate) fn replace(
        &mut self,
        path: &[&[u8]],
        bytes: Box<[u8]>,
    ) -> std::result::Result<bool, Box<[u8]>> {
        if self.table.is_empty() {
            return Err(bytes);
        }

        let hash = self.hash(path);
        let Some(bound) = self.table.find_mut(hash, |bound| bound.is_at(path)) else {
            return Err(bytes);
        };

        if bound.value.bytes == bytes {
            return Ok(false);
        }

        // In place if no clone shares the value: a counter then allocates once.
        match Arc::get_mut(&mut bound.value) {
            Some(value) => {
                value.bytes = bytes;
                value.hash = OnceLock::new();
                value.extent = OnceLock::new();
            }
            None => bound.value = Arc::new(Value::new(bytes)),
        }

        Ok(true)
    }

    /// Adds a value at `path`, where none is buffered.
    pub(crate) fn insert(&mut self, path: &[&[u8]], bytes: Box<[u8]>) {
        debug_assert!(self.get(path).is_none(), "the path is not buffered");
        debug_assert!(self.len() < WRITE_BUFFER_MAX, "the buffer has a bound");
        debug_assert!(!path.is_empty(), "the root is not buffered");
        let hash = self.hash(path);
        let mut encoded = Vec::with_capacity(path.iter().map(|step| step.len() + 1).sum());
        for step in path {
            debug_assert!(u8::try_from(step.len()).is_ok(), "a step has at most 255 bytes");
            encoded.push(step.len() as u8);
            encoded.extend_from_slice(step);
        }
        debug_assert_eq!(
            encoded.len(),
            path.iter().map(|step| step.len() + 1).sum::<usize>(),
            "each step stands behind its length"
        );
        let bound =
            BufferedValue { hash, path: encoded.into(), value: Arc::new(Value::new(bytes)) };
        self.table.insert_unique(hash, bound, |bound| bound.hash);
    }

    /// Removes the value at `path`; returns whether one was buffered.
    pub(crate) fn remove(&mut self, path: &[&[u8]]) -> bool {
        let hash = self.hash(path);
        let found = self.table.find_entry(hash, |bound| bound.is_at(path));
        found.map(|found| drop(found.remove())).is_ok()
    }

    pub(crate) fn clear(&mut self) {
        self.table.clear();
    }

    /// Returns all paths with their values, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Vec<&[u8]>, &Arc<Value>)> {
        self.table.iter().map(|bound| (bound.steps(), &bound.value))
    }
}
