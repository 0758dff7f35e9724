//! Files and standard streams that commands read and write whole, with progress bars of their
//! bytes. An output file is complete, or does not exist.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use terrane::io::{Disk, FileModes, RealDisk, RealOptions};
use terrane_replay::monitor::Monitor as _;

use crate::ui::args;
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::{ByteBar, Progress};

/// Stream that counts its bytes, and fails when the user asks to stop, if signals are handled.
pub(crate) struct Watched<'a> {
    pub(crate) stream: &'a mut dyn Write,
    pub(crate) bar: ByteBar,
    pub(crate) done: u64,
    /// Total bytes, if known.
    pub(crate) total: Option<u64>,
    pub(crate) signals: Option<Progress>,
    /// Whether the stream is a pipe whose reader went away.
    pub(crate) is_unread: bool,
}

impl Watched<'_> {
    pub(crate) fn is_stopped(&self) -> bool {
        self.signals.as_ref().is_some_and(Progress::stop)
    }
}

impl Write for Watched<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_stopped() {
            // Not `Interrupted`, which `write_all` would try again.
            return Err(io::Error::other("interrupted"));
        }
        let written = self.stream.write(bytes).inspect_err(|error| {
            self.is_unread |= error.kind() == io::ErrorKind::BrokenPipe;
        })?;
        self.done += written as u64;
        self.bar.show(self.done, self.total.map(|total| total.max(self.done)));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Default maximum bytes of a proof.
pub(crate) const PROOF_BYTES_MAX: &str = "64MiB";

/// Bytes of the write buffer.
const BUFFER_BYTES: usize = 1 << 16;

/// Permissions of files that a command writes outside the store.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct ModeArgs {
    /// Permissions of the written files, such as 0640, less those that the umask withholds; a
    /// reader of the files can also enter the directories
    #[arg(long, value_name = "OCTAL", value_parser = args::mode)]
    mode: Option<u32>,
}

impl ModeArgs {
    /// Returns a disk whose new files and directories get these permissions.
    ///
    /// # Errors
    /// [`Failure`] if the system refuses the means for it.
    pub(crate) fn disk(self) -> Result<Arc<dyn Disk>, Failure> {
        let Some(mode) = self.mode else { return Ok(RealDisk::auto()) };
        let options = RealOptions::default().modes(FileModes::of_files(mode));
        Ok(RealDisk::new(options).map_err(terrane::lsm::Error::from)?)
    }
}

/// Output file of a command, or standard output.
pub(crate) struct Output<'a> {
    path: &'a Path,
    force: bool,
    json: bool,
    is_stdout: bool,
    mode: ModeArgs,
}

impl<'a> Output<'a> {
    /// Checks the arguments of an output. `force` replaces an existing file; with `json` the report
    /// of the command goes to standard output.
    ///
    /// # Errors
    /// [`Failure`] if both go to standard output.
    pub(crate) fn new(path: &'a Path, force: bool, json: bool) -> Result<Self, Failure> {
        let is_stdout = is_stream(path);
        if is_stdout && json {
            return Err(Failure::usage("--json writes to standard output, and so does `-`"));
        }
        Ok(Self { path, force, json, is_stdout, mode: ModeArgs::default() })
    }

    /// Sets the permissions of the file, also of a replaced one.
    pub(crate) fn with_mode(self, mode: ModeArgs) -> Self {
        Self { mode, ..self }
    }

    /// Returns the handler of Ctrl-C for a file, which has to be removed. Standard output needs no
    /// cleaning up, and its reader may have stopped reading, so the process ends at once.
    pub(crate) fn interrupts(&self) -> Option<Progress> {
        (!self.is_stdout).then(|| Progress::new(true))
    }

    /// Runs `export` on the output, with a bar of `total` bytes if that is known. Returns `None` if
    /// the reader of standard output went away.
    ///
    /// # Errors
    /// Those of `export`, as `to_failure` converts them, and of the file; [`Failure`] if the user
    /// asks to stop.
    pub(crate) fn export<T, E>(
        &self,
        (bar, total): (ByteBar, Option<u64>),
        signals: Option<Progress>,
        export: impl FnOnce(&mut dyn Write) -> Result<T, E>,
        to_failure: impl FnOnce(E) -> Failure,
    ) -> Result<Option<T>, Failure> {
        let write = |stream: &mut dyn Write| {
            let watched = Watched { stream, bar, done: 0, total, signals, is_unread: false };
            let mut out = BufWriter::with_capacity(BUFFER_BYTES, watched);
            let exported = export(&mut out).map_err(to_failure);
            let exported = exported.and_then(|exported| {
                out.flush().map_err(|error| self.failed(&error)).map(|()| Some(exported))
            });
            if out.get_ref().is_stopped() {
                return Err(Failure::interrupted("interrupted; no export was made"));
            }
            // A reader that went away is no failure.
            if self.is_stdout && out.get_ref().is_unread { Ok(None) } else { exported }
        };

        if self.is_stdout {
            write(&mut io::stdout().lock())
        } else {
            Target::open(self.path, self.force, self.mode)?.fill(write)
        }
    }

    /// Writes the whole content of the output.
    ///
    /// # Errors
    /// [`Failure`]; a file is as it was then.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        if self.is_stdout {
            return output::write(&mut io::stdout().lock(), bytes).map(drop);
        }
        let target = Target::open(self.path, self.force, self.mode)?;
        target.fill(|out| out.write_all(bytes).map_err(|error| self.failed(&error)))
    }

    fn failed(&self, error: &io::Error) -> Failure {
        Failure::environment(format!("{}: {error}", self.path.display()))
    }

    /// Prints the report of the command, or `text` for people; to standard error if standard output
    /// has the exported bytes.
    ///
    /// # Errors
    /// Those of [`output::report`].
    pub(crate) fn report<T: Serialize>(
        &self,
        command: &str,
        report: &T,
        text: &str,
    ) -> Result<(), Failure> {
        if self.is_stdout {
            // A reader of standard error that went away is no failure.
            let _ = writeln!(io::stderr(), "{text}");
            return Ok(());
        }
        if self.json {
            return output::report(command, true, report, &[]);
        }

        output::print(text)
    }
}

/// Returns whether a path stands for standard input or output.
pub(crate) fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}

/// Opens a file, or standard input, for reading; returns its length, if it has one.
///
/// # Errors
/// [`Failure`]: bad input if it is not there, or a directory.
fn open_input(path: &Path) -> Result<(Box<dyn Read>, Option<u64>), Failure> {
    if is_stream(path) {
        return Ok((Box::new(io::stdin().lock()), None));
    }

    let unreadable = |error: io::Error| {
        let message = format!("{}: {error}", path.display());
        match error.kind() {
            io::ErrorKind::NotFound => Failure::usage(message),
            _ => Failure::environment(message),
        }
    };

    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.is_dir() {
        return Err(Failure::usage(format!("{} is a directory", path.display())));
    }

    Ok((Box::new(file), metadata.is_file().then_some(metadata.len())))
}

/// File to write: complete in the end, or unchanged.
///
/// The bytes go to a new file beside it, with an unpredictable name, which takes the place of the
/// file in the end. So no other file is touched, not even through a link that somebody placed under
/// a predicted name.
pub(crate) struct Target {
    path: PathBuf,
    /// Path of the new file; `None` for a device or a pipe, which is written directly.
    beside: Option<PathBuf>,
    /// Whether an existing file is replaced.
    replaces: bool,
    file: File,
}

/// Maximum names to try for the new file.
const NAMES_MAX: u32 = 100;

/// Creates a new file beside `path`. Its name does not contain that of the file, which may have the
/// maximum length.
fn create_beside(path: &Path, ModeArgs { mode }: ModeArgs) -> io::Result<(PathBuf, File)> {
    let random = RandomState::new();
    for number in 0..NAMES_MAX {
        let name = format!(".terrane-{:016x}.tmp", random.hash_one(number));
        let beside = path.with_file_name(name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(mode.unwrap_or(0o666));
        match options.open(&beside) {
            Ok(file) => return Ok((beside, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }

    Err(io::ErrorKind::AlreadyExists.into())
}

impl Target {
    /// Opens the target with these permissions; without them a replaced file keeps its own. An
    /// existing file is replaced only with `force`. A symbolic link stands for the file that it
    /// leads to.
    ///
    /// # Errors
    /// [`Failure`]; nothing has been changed then.
    fn open(path: &Path, force: bool, mode: ModeArgs) -> Result<Self, Failure> {
        let shown = path.display();
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => {
                Failure::usage(format!("{shown}: there is no such directory"))
            }
            _ => Failure::environment(format!("{shown}: {error}")),
        };

        // A device or a pipe is written directly; a file is replaced as a whole.
        let there = match fs::metadata(path) {
            Ok(there) => Some(there),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };

        let path = match &there {
            Some(there) if there.is_dir() => {
                return Err(Failure::usage(format!("{shown} is a directory")));
            }
            Some(there) if !there.is_file() => {
                let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
                return Ok(Self { path: path.to_owned(), beside: None, replaces: false, file });
            }
            Some(_) if force => fs::canonicalize(path).map_err(failed)?,
            Some(_) => return Err(is_there(path)),
            None if path.is_symlink() => {
                let message = format!("{shown} is a link to a missing file; remove it");
                return Err(Failure::usage(message));
            }
            None => path.to_owned(),
        };

        let (beside, file) = create_beside(&path, mode).map_err(failed)?;
        let target = Self { path, beside: Some(beside), replaces: there.is_some(), file };

        if let Some(there) = there.filter(|_| mode.mode.is_none())
            && let Err(error) = target.file.set_permissions(there.permissions())
        {
            target.discard();
            return Err(failed(error));
        }

        Ok(target)
    }

    /// Runs `write` on the new file, makes the file durable, and moves it to its place.
    ///
    /// # Errors
    /// Those of `write`, and of the file; what was there before is there still.
    pub(crate) fn fill<T>(
        mut self,
        write: impl FnOnce(&mut dyn Write) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let written = write(&mut self.file).and_then(|summary| {
            self.finish().map(|()| summary).map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => is_there(&self.path),
                _ => Failure::environment(format!("{}: {error}", self.path.display())),
            })
        });
        if written.is_err() {
            self.discard();
        }

        written
    }

    fn finish(&self) -> io::Result<()> {
        let Some(beside) = &self.beside else { return Ok(()) };

        // The bytes must be durable before the name is: a crash leaves the old file or the new one.
        self.file.sync_all()?;
        if self.replaces {
            return fs::rename(beside, &self.path);
        }

        // Unlike a rename, a hard link does not replace a file that appeared meanwhile.
        match fs::hard_link(beside, &self.path) {
            Ok(()) => fs::remove_file(beside),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
            // The file system has no hard links.
            Err(_) if self.path.symlink_metadata().is_ok() => {
                Err(io::ErrorKind::AlreadyExists.into())
            }
            Err(_) => fs::rename(beside, &self.path),
        }
    }

    fn discard(&self) {
        if let Some(beside) = &self.beside {
            // The first failure is reported; if the removal fails too, an incomplete file with a
            // temporary name is left.
            let _ = fs::remove_file(beside);
        }
    }
}

fn is_there(path: &Path) -> Failure {
    Failure::usage(format!("{} exists; --force replaces it", path.display()))
}

/// Reads a whole file, or standard input.
///
/// # Errors
/// [`Failure`]: bad input if it is not there, or has more than `bytes_max`.
pub(crate) fn read_all(path: &Path, bytes_max: u64) -> Result<Vec<u8>, Failure> {
    let (input, _) = open_input(path)?;
    let mut content = Vec::new();
    // One byte more than allowed tells a long file from a file at the limit.
    let read = input.take(bytes_max.saturating_add(1)).read_to_end(&mut content);
    read.map_err(|error| Failure::environment(format!("{}: {error}", path.display())))?;
    if content.len() as u64 > bytes_max {
        let path = path.display();
        let message = format!("{path}: more than {bytes_max} bytes; --bytes-max allows more");
        return Err(Failure::usage(message));
    }
    Ok(content)
}

/// Input file, or standard input, with a progress bar.
pub(crate) struct Input {
    stream: Box<dyn Read>,
    bar: ByteBar,
    done: u64,
    total: Option<u64>,
}

impl Input {
    /// # Errors
    /// Those of [`open_input`].
    pub(crate) fn open(path: &Path, bar: ByteBar) -> Result<Self, Failure> {
        let (stream, total) = open_input(path)?;
        Ok(Self { stream, bar, done: 0, total })
    }

    /// Removes the bar; returns the number of bytes read.
    pub(crate) fn close(self) -> u64 {
        self.done
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        self.done += read as u64;
        self.bar.show(self.done, self.total.map(|total| total.max(self.done)));
        Ok(read)
    }
}
