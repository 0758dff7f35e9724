//! Names the shared library `libterrane_verify.so.$TERRANE_C_ABI`, where that is set; see the build
//! script of `terrane-c`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TERRANE_C_ABI");
    if let Ok(abi) = std::env::var("TERRANE_C_ABI") {
        // Not `rustc-cdylib-link-arg`: that reaches the shared library of `terrane-c`, too.
        println!("cargo::rustc-link-arg=-Wl,-soname,libterrane_verify.so.{abi}");
    }
}
