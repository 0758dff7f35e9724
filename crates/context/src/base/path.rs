//! Paths: lists of steps, each 1 to 255 bytes that need not be text.

use std::fmt;

/// Upper bound of the levels of directories of a tree.
pub(crate) const HEIGHT_MAX: u16 = 512;

/// Path as errors show it: steps joined by `/`, bytes that are not printable ASCII as `\xNN`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PathText(pub String);

impl fmt::Display for PathText {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { out.write_str("the root") } else { out.write_str(&self.0) }
    }
}

impl PathText {
    /// Returns the text of a path.
    pub fn new<S: AsRef<[u8]>>(steps: &[S]) -> Self {
        let texts: Vec<String> = steps.iter().map(|step| step_text(step.as_ref())).collect();
        Self(texts.join("/"))
    }
}

/// Returns the text of a step.
pub(crate) fn step_text(step: &[u8]) -> String {
    step.iter().map(|&byte| std::ascii::escape_default(byte).to_string()).collect()
}

/// Path as slices, without an allocation up to 12 steps: each public call converts its argument
/// once.
#[derive(Debug)]
pub(crate) struct Steps<'a> {
    near: [&'a [u8]; Steps::NEAR],
    far: Vec<&'a [u8]>,
    len: usize,
}

impl<'a> Steps<'a> {
    const NEAR: usize = 12;

    pub(crate) fn new<S: AsRef<[u8]>>(path: &'a [S]) -> Self {
        let mut near = [[].as_slice(); Self::NEAR];
        let mut far = Vec::new();

        // Paths of Tezos have about a dozen steps, so most calls do not allocate.
        if path.len() > Self::NEAR {
            far = path.iter().map(AsRef::as_ref).collect();
        } else {
            for (slot, step) in near.iter_mut().zip(path) {
                *slot = step.as_ref();
            }
        }
        debug_assert!(
            path.len() <= Self::NEAR || far.len() == path.len(),
            "a long path is in one list"
        );
        Self { near, far, len: path.len() }
    }

    pub(crate) fn as_slice(&self) -> &[&'a [u8]] {
        if self.len > Self::NEAR { &self.far } else { &self.near[..self.len] }
    }
}
