#![doc = include_str!("../../../README.md")]
#![forbid(unsafe_code)]

#[doc(inline)]
pub use terrane_backends as backends;
#[doc(inline)]
pub use terrane_btree as btree;
#[doc(inline)]
pub use terrane_context as context;
#[doc(inline)]
pub use terrane_io as io;
#[doc(inline)]
pub use terrane_kv as kv;
#[doc(inline)]
pub use terrane_lsm::*;
#[doc(inline)]
pub use terrane_radix as radix;

pub mod state_dir;
