//! Write buffer: values bound in a tree that are not in its nodes yet. A value that a block writes
//! again and again, such as a counter, goes into the nodes once.
//!
//! Invariant: a buffered binding changes nothing but itself: its path has a value, or nothing in a
//! directory that exists. So no buffered path lies on the way of another, the nodes answer all
//! other questions, and applying the buffer needs no I/O.
//!
//! The nodes lack the steps of *new* values, so a directory may have more steps than its nodes say.
//! The buffer counts new values by their directories: a removal elsewhere lets all values wait.

use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, OnceLock};

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::base::fast_map::FastMap;
use crate::tree::node::Value;

/// Capacity of the buffer, in values.
pub(crate) const WRITE_BUFFER_MAX: usize = 1 << 14;

/// Table of buffered values by their paths. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct WriteBuffer {
    table: HashTable<BufferedValue>,
    hasher: DefaultHashBuilder,
    /// Numbers of new values, by the hashes of the paths of their directories.
    grown: FastMap<u64, u32>,
}

#[derive(Debug)]
struct BufferedValue {
    hash: u64,
    /// Each step behind its length.
    path: Box<[u8]>,
    value: Arc<Value>,
    /// Whether the nodes have nothing at the path.
    is_new: bool,
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
    fn steps(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &*self.path;
        std::iter::from_fn(move || {
            let (&len, after) = rest.split_first()?;
            let (step, after) = after.split_at(usize::from(len));
            rest = after;
            Some(step)
        })
    }
}

impl WriteBuffer {
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Hash of a path, for [`replace`](Self::replace) and [`insert`](Self::insert).
    pub(crate) fn hash(&self, path: &[&[u8]]) -> u64 {
        let mut hasher = self.hasher.build_hasher();

        // The hasher mixes the length of each step with it, which keeps `a/bc` and `ab/c` apart;
        // paths whose hashes are equal are compared.
        for step in path {
            hasher.write(step);
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

    /// Replaces the value at `path`, which has this hash, if one is buffered, and returns whether
    /// it differs; otherwise returns the value.
    pub(crate) fn replace(
        &mut self,
        (hash, path): (u64, &[&[u8]]),
        bytes: Box<[u8]>,
    ) -> std::result::Result<bool, Box<[u8]>> {
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

    /// Adds a value at `path`, which has this hash, where none is buffered. `is_new` says whether
    /// the nodes have nothing there.
    pub(crate) fn insert(&mut self, (hash, path): (u64, &[&[u8]]), bytes: Box<[u8]>, is_new: bool) {
        debug_assert_eq!(hash, self.hash(path), "the hash is that of the path");
        debug_assert!(self.get(path).is_none(), "the path is not buffered");
        debug_assert!(self.len() < WRITE_BUFFER_MAX, "the buffer has a bound");
        debug_assert!(!path.is_empty(), "the root is not buffered");
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
        let value = Arc::new(Value::new(bytes));
        let bound = BufferedValue { hash, path: encoded.into(), value, is_new };
        self.table.insert_unique(hash, bound, |bound| bound.hash);
        if is_new {
            *self.grown.entry(self.hash_dir(path)).or_default() += 1;
        }
    }

    /// Removes the value at `path`; returns whether one was buffered.
    pub(crate) fn remove(&mut self, path: &[&[u8]]) -> bool {
        let hash = self.hash(path);
        let Ok(found) = self.table.find_entry(hash, |bound| bound.is_at(path)) else {
            return false;
        };
        let (bound, _) = found.remove();
        if bound.is_new {
            let dir = self.hash_dir(path);
            let count = self.grown.get_mut(&dir).expect("new values are counted");
            *count -= 1;
            if *count == 0 {
                self.grown.remove(&dir);
            }
        }
        true
    }

    /// Hash of the directory of a path.
    fn hash_dir(&self, path: &[&[u8]]) -> u64 {
        self.hash(&path[..path.len() - 1])
    }

    /// Returns whether a directory may have more steps than its nodes say; true for some others
    /// too.
    pub(crate) fn may_grow(&self, dir: &[&[u8]]) -> bool {
        !self.grown.is_empty() && self.grown.contains_key(&self.hash(dir))
    }

    pub(crate) fn clear(&mut self) {
        self.table.clear();
        self.grown.clear();
    }

    /// Returns all values with the steps of their paths, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (impl Iterator<Item = &[u8]>, &Arc<Value>)> {
        self.table.iter().map(|bound| (bound.steps(), &bound.value))
    }
}
