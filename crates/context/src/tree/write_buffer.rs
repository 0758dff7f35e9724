//! Write buffer: values bound in a tree that are not in its nodes yet. A value that a block writes
//! again and again, such as a counter, goes into the nodes once.
//!
//! Invariant: a buffered binding changes nothing but itself: its path has a value, or nothing in a
//! directory that exists. So no buffered path lies on the way of another, the nodes answer all
//! other questions, and applying the buffer needs no I/O.
//!
//! Values that nodes store in place are bytes in the table, and all paths are in one list: such a
//! value takes no memory of its own.
//!
//! The nodes lack the steps of *new* values, so a directory may have more steps than its nodes say.
//! The buffer counts new values by their directories: a removal elsewhere lets all values wait.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::base::fast_map::FastMap;
use crate::object::entries::INLINE_BYTES_MAX;
use crate::tree::into_value::IntoValue;
use crate::tree::node::{Bound, Child, Value};

/// Capacity of the buffer, in values.
pub(crate) const WRITE_BUFFER_MAX: usize = 1 << 14;

/// Bytes of paths that are gone which the list may have, beside as many as those that are there.
const SLACK_BYTES: usize = 4 << 10;

/// Bytes of the list of paths that are kept for the next values.
const SPARE_BYTES_MAX: usize = 1 << 20;

/// Table of buffered values by their paths. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct WriteBuffer {
    table: HashTable<BufferedValue>,
    /// Paths, each step behind its length.
    paths: Vec<u8>,
    /// Bytes of the paths of values that are gone.
    gone_bytes: usize,
    hasher: DefaultHashBuilder,
    /// Numbers of new values, by the hashes of the paths of their directories.
    grown: FastMap<u64, u32>,
}

#[derive(Debug)]
struct BufferedValue {
    hash: u64,
    path: PathSpan,
    content: Buffered,
    /// Whether the nodes have nothing at the path.
    is_new: bool,
}

/// Path in the list of paths.
#[derive(Debug, Clone, Copy)]
struct PathSpan {
    start: usize,
    bytes: u32,
}

/// Value that waits.
#[derive(Debug)]
enum Buffered {
    /// One that a node stores in place.
    Short {
        len: u8,
        bytes: [u8; INLINE_BYTES_MAX],
    },
    Long(Arc<Value>),
}

impl PathSpan {
    fn of(self, paths: &[u8]) -> &[u8] {
        &paths[self.start..self.start + self.bytes as usize]
    }

    fn is(self, paths: &[u8], path: &[&[u8]]) -> bool {
        let mut rest = self.of(paths);
        path.iter().all(|step| match rest.split_first() {
            Some((&len, after)) if usize::from(len) == step.len() => {
                let (own, after) = after.split_at(step.len());
                rest = after;
                own == *step
            }
            _ => false,
        }) && rest.is_empty()
    }

    fn steps(self, paths: &[u8]) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.of(paths);
        std::iter::from_fn(move || {
            let (&len, after) = rest.split_first()?;
            let (step, after) = after.split_at(usize::from(len));
            rest = after;
            Some(step)
        })
    }
}

impl Buffered {
    fn new(value: impl IntoValue) -> Self {
        let short = value.bytes();
        if short.len() > INLINE_BYTES_MAX {
            return Self::Long(Arc::new(Value::new(value.into_value())));
        }
        let mut bytes = [0; INLINE_BYTES_MAX];
        bytes[..short.len()].copy_from_slice(short);
        Self::Short { len: short.len() as u8, bytes }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => &bytes[..usize::from(*len)],
            Self::Long(value) => &value.bytes,
        }
    }

    fn bound(&self) -> Bound<'_> {
        match self {
            Self::Short { .. } => Bound::Short(self.bytes()),
            Self::Long(value) => Bound::Child(Child::Value(Arc::clone(value))),
        }
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
    pub(crate) fn get(&self, path: &[&[u8]]) -> Option<&[u8]> {
        if self.table.is_empty() {
            return None;
        }
        let is_it = |bound: &BufferedValue| bound.path.is(&self.paths, path);
        Some(self.table.find(self.hash(path), is_it)?.content.bytes())
    }

    /// Replaces the value at `path`, which has this hash, if one is buffered, and returns whether
    /// it differs; otherwise returns the value.
    pub(crate) fn replace<V: IntoValue>(
        &mut self,
        (hash, path): (u64, &[&[u8]]),
        value: V,
    ) -> std::result::Result<bool, V> {
        let Some(bound) = self.table.find_mut(hash, |bound| bound.path.is(&self.paths, path))
        else {
            return Err(value);
        };

        if bound.content.bytes() == value.bytes() {
            return Ok(false);
        }
        bound.content = Buffered::new(value);
        Ok(true)
    }

    /// Adds a value at `path`, which has this hash, where none is buffered. `is_new` says whether
    /// the nodes have nothing there.
    pub(crate) fn insert(
        &mut self,
        (hash, path): (u64, &[&[u8]]),
        value: impl IntoValue,
        is_new: bool,
    ) {
        debug_assert_eq!(hash, self.hash(path), "the hash is that of the path");
        debug_assert!(self.get(path).is_none(), "the path is not buffered");
        debug_assert!(self.len() < WRITE_BUFFER_MAX, "the buffer has a bound");
        debug_assert!(!path.is_empty(), "the root is not buffered");
        let start = self.paths.len();
        for step in path {
            debug_assert!(u8::try_from(step.len()).is_ok(), "a step has at most 255 bytes");
            self.paths.push(step.len() as u8);
            self.paths.extend_from_slice(step);
        }
        // At most 512 steps of 256 bytes each.
        let span = PathSpan { start, bytes: (self.paths.len() - start) as u32 };
        let bound = BufferedValue { hash, path: span, content: Buffered::new(value), is_new };
        self.table.insert_unique(hash, bound, |bound| bound.hash);
        if is_new {
            *self.grown.entry(self.hash_dir(path)).or_default() += 1;
        }
    }

    /// Removes the value at `path`; returns whether one was buffered.
    pub(crate) fn remove(&mut self, path: &[&[u8]]) -> bool {
        let hash = self.hash(path);
        let Ok(found) = self.table.find_entry(hash, |bound| bound.path.is(&self.paths, path))
        else {
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
        self.gone_bytes += bound.path.bytes as usize;
        self.drop_gone_paths();
        true
    }

    /// Drops the paths of values that are gone when they are most of the bytes.
    fn drop_gone_paths(&mut self) {
        let live = self.paths.len() - self.gone_bytes;
        if self.gone_bytes <= live + SLACK_BYTES {
            return;
        }
        let mut paths = Vec::with_capacity(live);
        for bound in &mut self.table {
            let start = paths.len();
            paths.extend_from_slice(bound.path.of(&self.paths));
            bound.path.start = start;
        }
        debug_assert_eq!(paths.len(), live, "all paths are there");
        (self.paths, self.gone_bytes) = (paths, 0);
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
        self.paths.clear();
        // Many deep paths leave no huge list behind.
        self.paths.shrink_to(SPARE_BYTES_MAX);
        self.gone_bytes = 0;
        self.grown.clear();
    }

    /// Returns all values with the steps of their paths, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (impl Iterator<Item = &[u8]>, Bound<'_>)> {
        self.table.iter().map(|bound| (bound.path.steps(&self.paths), bound.content.bound()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    use super::*;

    /// The buffer is a map from paths to values, and the paths of what is gone take little memory.
    #[test]
    fn the_buffer_is_a_map_from_paths() {
        let mut dropped = 0;
        for_each_seed("the_buffer_is_a_map_from_paths", 12, |rng, _| {
            let mut buffer = WriteBuffer::default();
            let mut model: BTreeMap<Vec<Vec<u8>>, Vec<u8>> = BTreeMap::new();
            for round in 0..1_500_u32 {
                // `a/aa` and `aa/a` are two paths.
                let step = |rng: &mut _| vec![b'a'; 1 + Draw::index(rng, 12)];
                let path: Vec<Vec<u8>> = (0..=rng.index(3)).map(|_| step(rng)).collect();
                let slices: Vec<&[u8]> = path.iter().map(Vec::as_slice).collect();
                let value = vec![round as u8; rng.index(INLINE_BYTES_MAX + 3)];

                let hashed = (buffer.hash(&slices), slices.as_slice());
                let before = model.get(&path).cloned();
                assert_eq!(buffer.get(&slices), before.as_deref());
                if rng.chance(2, 5) {
                    assert_eq!(buffer.remove(&slices), model.remove(&path).is_some());
                } else {
                    match buffer.replace(hashed, &value) {
                        Ok(changed) => assert_eq!(Some(changed), before.map(|old| old != value)),
                        Err(value) => buffer.insert(hashed, value, rng.chance(1, 2)),
                    }
                    model.insert(path, value);
                }

                let live: usize = model.keys().flatten().map(|step| step.len() + 1).sum();
                assert_eq!(buffer.paths.len() - buffer.gone_bytes, live);
                assert!(buffer.gone_bytes <= live + SLACK_BYTES);
                dropped += usize::from(buffer.gone_bytes == 0 && live > 0);
            }

            let mut all = BTreeMap::new();
            for (path, bound) in buffer.iter() {
                let bytes = match bound {
                    Bound::Short(bytes) => bytes.to_vec(),
                    Bound::Child(Child::Value(value)) => value.bytes.to_vec(),
                    Bound::Child(_) => unreachable!("values wait"),
                };
                all.insert(path.map(<[u8]>::to_vec).collect(), bytes);
            }
            assert_eq!(all, model);
            buffer.clear();
            assert!(buffer.is_empty() && !buffer.may_grow(&[]) && buffer.paths.is_empty());
        });
        assert!(dropped > 0, "no path was dropped");
    }
}
