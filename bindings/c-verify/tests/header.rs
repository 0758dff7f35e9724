//! The committed header is the one that cbindgen makes of the sources.
//!
//! `cargo xtask capi --write` sets `TERRANE_HEADER=write`, and then it is written instead.

#![forbid(unsafe_code)]

use std::path::Path;

#[test]
fn the_committed_header_is_that_of_the_sources() {
    let made = include_str!(concat!(env!("OUT_DIR"), "/terrane_verify.h"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/terrane_verify.h");
    if std::env::var_os("TERRANE_HEADER").is_some_and(|wish| wish == "write") {
        std::fs::write(&path, made).expect("the header can be written");
        return;
    }
    let found = std::fs::read_to_string(&path).expect("there is a header");
    assert!(found == made, "terrane_verify.h is not up to date: `cargo xtask capi --write`");
}
