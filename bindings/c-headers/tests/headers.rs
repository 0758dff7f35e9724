//! The committed headers are those that cbindgen makes of the sources.
//!
//! `cargo xtask capi --write` sets `TERRANE_HEADER=write`, and then they are written instead.

#![forbid(unsafe_code)]

use std::path::Path;

/// Compares a header of the library in a folder beside this one, or writes it.
fn check(folder: &str, header: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name(folder);
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml"));
    let config = config.expect("cbindgen.toml is a configuration");
    let bindings = cbindgen::Builder::new().with_crate(&folder).with_config(config).generate();
    let mut made = Vec::new();
    bindings.expect("the sources give a header").write(&mut made);

    let path = folder.join("include").join(header);
    if std::env::var_os("TERRANE_HEADER").is_some_and(|wish| wish == "write") {
        std::fs::write(&path, made).expect("the header can be written");
        return;
    }
    let found = std::fs::read(&path).expect("there is a header");
    assert!(found == made, "{header} is not up to date: `cargo xtask capi --write`");
}

#[test]
fn the_header_of_stores_is_that_of_the_sources() {
    check("c", "terrane.h");
}

#[test]
fn the_header_of_verifiers_is_that_of_the_sources() {
    check("c-verify", "terrane_verify.h");
}
