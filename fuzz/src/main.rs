//! libFuzzer on one target of `terrane-fuzz`, which `TERRANE_FUZZ_TARGET` names.
//!
//! One program for all targets: it is linked once, and coverage is of what the target reaches.

#![no_main]

use std::sync::LazyLock;

use terrane_fuzz::{Target, target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("TERRANE_FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| panic!("TERRANE_FUZZ_TARGET={name} names no target"))
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| (TARGET.run)(data));
