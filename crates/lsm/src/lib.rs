//! Placeholder.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), expect(dead_code, reason = "the modules that use these come next"))]

mod corrupt;
mod filter;
mod index;

pub use corrupt::Corrupt;
pub use filter::FilterAllocation;
pub use index::IndexKind;
