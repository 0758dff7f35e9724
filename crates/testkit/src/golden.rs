//! Golden files: the bytes of one value of each on-disk type, committed beside the crate that
//! writes it.
//!
//! A test encodes a fixed value and calls [`check`]; a change of a single byte of the format fails
//! it. `cargo xtask golden --write` (which sets `TERRANE_GOLDEN=write`) writes the files instead,
//! and the commit that does so also changes the format document and the changelog.
//!
//! Files lie at `golden/v1/<type>.<case>.bin` under the crate's folder. A format version that is
//! released keeps its folder for ever: the next one decodes its files or refuses them by name.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// Folder of the files of the current format, under the folder of the crate.
pub const FOLDER: &str = "golden/v1";

/// Compares `bytes` with the golden file `name` of the crate whose folder is `crate_dir`
/// (`env!("CARGO_MANIFEST_DIR")`), or writes that file under `TERRANE_GOLDEN=write`.
///
/// # Panics
/// When the file is missing or differs; the message names the first differing byte.
pub fn check(crate_dir: impl AsRef<Path>, name: &str, bytes: &[u8]) {
    if let Err(message) = check_in(mode(), crate_dir.as_ref(), name, bytes) {
        panic!("{message}");
    }
}

/// The content of the golden file `name`, for tests that decode it.
///
/// # Panics
/// When the file cannot be read.
#[must_use]
pub fn read(crate_dir: impl AsRef<Path>, name: &str) -> Vec<u8> {
    let path = path_of(crate_dir.as_ref(), name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; {REMEDY}", path.display()))
}

/// Checks that the golden folder holds a file for each of `names`, and nothing else.
///
/// # Panics
/// When a file is missing (not under `TERRANE_GOLDEN=write`, where another test may be about to
/// write it) or unexpected.
pub fn check_complete(crate_dir: impl AsRef<Path>, names: &[&str]) {
    if let Err(message) = check_complete_in(mode(), crate_dir.as_ref(), names) {
        panic!("{message}");
    }
}

const REMEDY: &str = "if the format is meant to change, run `cargo xtask golden --write` and \
                      change the format document and CHANGELOG.md with it";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Compare,
    Write,
}

fn mode() -> Mode {
    match env::var("TERRANE_GOLDEN").as_deref() {
        Ok("write") => Mode::Write,
        Err(_) | Ok("") => Mode::Compare,
        Ok(other) => panic!("TERRANE_GOLDEN={other}: the only value is `write`"),
    }
}

/// Whether golden files and texts are to be written and not compared.
///
/// # Panics
/// When `TERRANE_GOLDEN` is anything but `write`.
#[must_use]
pub fn is_writing() -> bool {
    mode() == Mode::Write
}

fn path_of(crate_dir: &Path, name: &str) -> PathBuf {
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    assert!(
        !name.is_empty() && name.bytes().all(plain),
        "golden name {name:?}: a-z 0-9 . _ - only"
    );
    crate_dir.join(FOLDER).join(format!("{name}.bin"))
}

fn check_in(mode: Mode, crate_dir: &Path, name: &str, bytes: &[u8]) -> Result<(), String> {
    let path = path_of(crate_dir, name);
    let failed = |error: std::io::Error| format!("{}: {error}; {REMEDY}", path.display());
    if mode == Mode::Write {
        fs::create_dir_all(crate_dir.join(FOLDER)).map_err(failed)?;
        return fs::write(&path, bytes).map_err(failed);
    }

    let golden = fs::read(&path).map_err(failed)?;
    if golden == bytes {
        return Ok(());
    }
    let offset = golden.iter().zip(bytes).take_while(|(left, right)| left == right).count();

    Err(format!(
        "{} differs at byte {offset}: golden {} of {} bytes, now {} of {} bytes; {REMEDY}",
        path.display(),
        window(&golden, offset),
        golden.len(),
        window(bytes, offset),
        bytes.len(),
    ))
}

fn check_complete_in(mode: Mode, crate_dir: &Path, names: &[&str]) -> Result<(), String> {
    let folder = crate_dir.join(FOLDER);
    let expected: Vec<PathBuf> = names.iter().map(|name| path_of(crate_dir, name)).collect();
    if mode == Mode::Compare
        && let Some(missing) = expected.iter().find(|path| !path.is_file())
    {
        return Err(format!("{} is missing; {REMEDY}", missing.display()));
    }

    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(_) if names.is_empty() || mode == Mode::Write => return Ok(()),
        Err(error) => return Err(format!("{}: {error}", folder.display())),
    };

    for entry in entries {
        let path = entry.map_err(|error| format!("{}: {error}", folder.display()))?.path();
        if !expected.contains(&path) {
            return Err(format!(
                "{} is expected by no test; delete it or name it in the list",
                path.display()
            ));
        }
    }

    Ok(())
}

/// Up to eight bytes from `offset`, in hexadecimal.
fn window(bytes: &[u8], offset: usize) -> String {
    let rest = bytes.get(offset..).unwrap_or_default();
    if rest.is_empty() {
        return "(end)".to_owned();
    }
    rest.iter().take(8).map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_compares_equal_and_nothing_else_does() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        check_in(Mode::Write, dir, "page.two-entries", b"abcdef").unwrap();
        assert_eq!(check_in(Mode::Compare, dir, "page.two-entries", b"abcdef"), Ok(()));
        assert_eq!(read(dir, "page.two-entries"), b"abcdef");

        let changed = check_in(Mode::Compare, dir, "page.two-entries", b"abcXef").unwrap_err();
        assert!(changed.contains("differs at byte 3: golden 64 65 66 of 6 bytes"), "{changed}");
        assert!(changed.contains("cargo xtask golden --write"), "{changed}");
        let longer = check_in(Mode::Compare, dir, "page.two-entries", b"abcdefg").unwrap_err();
        assert!(longer.contains("differs at byte 6: golden (end) of 6 bytes, now 67"), "{longer}");
    }

    #[test]
    fn a_missing_file_fails_instead_of_being_written() {
        let folder = tempfile::tempdir().unwrap();
        assert!(check_in(Mode::Compare, folder.path(), "page", b"abc").is_err());
        assert!(!folder.path().join(FOLDER).exists());
    }

    #[test]
    fn missing_and_unexpected_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        assert_eq!(check_complete_in(Mode::Compare, dir, &[]), Ok(()));
        check_in(Mode::Write, dir, "one", b"1").unwrap();
        check_in(Mode::Write, dir, "two", b"2").unwrap();
        assert_eq!(check_complete_in(Mode::Compare, dir, &["one", "two"]), Ok(()));
        let unexpected = check_complete_in(Mode::Compare, dir, &["one"]).unwrap_err();
        assert!(unexpected.contains("two.bin is expected by no test"), "{unexpected}");

        let missing = check_complete_in(Mode::Compare, dir, &["one", "two", "three"]).unwrap_err();
        assert!(missing.contains("three.bin is missing"), "{missing}");
        assert_eq!(check_complete_in(Mode::Write, dir, &["one", "two", "three"]), Ok(()));
    }

    #[test]
    #[should_panic(expected = "golden name")]
    fn a_name_cannot_leave_the_folder() {
        let _ = path_of(Path::new("."), "../escape");
    }
}
