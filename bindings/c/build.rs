//! Names the shared library `libterrane_c.so.$TERRANE_C_ABI`, where that is set.
//!
//! Programs linked with it then look for that name. `cargo xtask capi` sets it, and makes the links
//! that have it; a build by hand has none, so its library goes by the name of its file.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TERRANE_C_ABI");
    if let Ok(abi) = std::env::var("TERRANE_C_ABI") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libterrane_c.so.{abi}");
    }
}
