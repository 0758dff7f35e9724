//! Writes `terrane_verify.h` to the folder of the build, as `OUT_DIR/terrane_verify.h`.
//!
//! `cargo xtask capi` compares it with the committed one, or takes it over.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=cbindgen.toml");
    let folder = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml"));
    let config = config.expect("cbindgen.toml is a configuration");
    let bindings = cbindgen::Builder::new().with_crate(&folder).with_config(config).generate();
    bindings.expect("the sources give a header").write_to_file(out.join("terrane_verify.h"));
}
