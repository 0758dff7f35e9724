//! Streams of a long export or import: files that are written whole or not at all, bytes that are counted.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use terrane_bench::monitor::Monitor as _;

use crate::exit::Failure;
use crate::progress::{ByteBar, Progress, exit_on_interrupt};

/// A stream whose bytes are counted, and that ends when the user asks to stop, where that is listened to.
pub(crate) struct Watched<'a> {
    pub(crate) stream: &'a mut dyn Write,
    pub(crate) bar: ByteBar,
    pub(crate) done: u64,
    /// If it is known.
    pub(crate) total: Option<u64>,
    pub(crate) signals: Option<Progress>,
}

impl Watched<'_> {
    pub(crate) fn is_stopped(&self) -> bool {
        self.signals.as_ref().is_some_and(Progress::stop)
    }
}

impl Write for Watched<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_stopped() {
            // Not of the kind that is tried again.
            return Err(io::Error::other("interrupted"));
        }
        let written = self.stream.write(bytes)?;
        self.done += written as u64;
        self.bar.show(self.done, self.total.map(|total| total.max(self.done)));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// What Ctrl-C does to what is written: a file is to be removed. Standard output has nothing that would have to be, and its
/// reader may read no more, so the process ends at once.
///
/// # Errors
/// [`Failure`] if the system refuses the signal handler.
pub(crate) fn interrupts(is_stdout: bool) -> Result<Option<Progress>, Failure> {
    if is_stdout {
        return exit_on_interrupt().map(|()| None);
    }
    Progress::new(true).map(Some)
}

/// Whether a path stands for standard input or output.
pub(crate) fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}

/// Opens a file to be read, or standard input; gives its length, if it has one.
///
/// # Errors
/// [`Failure`]: bad input if it is not there, or a directory.
pub(crate) fn open_input(path: &Path) -> Result<(Box<dyn Read>, Option<u64>), Failure> {
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

/// A file to be written: whole in the end, or as it was.
pub(crate) struct Target {
    path: PathBuf,
    /// Where it is written, if something is there that it replaces.
    beside: Option<PathBuf>,
    /// Whether it goes if writing fails; a device or a pipe does not.
    is_ours: bool,
    file: File,
}

impl Target {
    /// Opens it; a file that is there is replaced only with `force`.
    ///
    /// # Errors
    /// [`Failure`]; nothing has been changed then.
    pub(crate) fn open(path: &Path, force: bool) -> Result<Self, Failure> {
        let shown = path.display();
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                Failure::usage(format!("{shown} is there; --force replaces it"))
            }
            io::ErrorKind::NotFound => {
                Failure::usage(format!("{shown}: there is no such directory"))
            }
            _ => Failure::environment(format!("{shown}: {error}")),
        };
        let path = path.to_owned();
        match fs::metadata(&path) {
            Ok(there) if there.is_dir() => Err(Failure::usage(format!("{shown} is a directory"))),
            Ok(there) if !there.is_file() => {
                let file = OpenOptions::new().write(true).open(&path).map_err(failed)?;
                Ok(Self { path, beside: None, is_ours: false, file })
            }
            Ok(_) if force => {
                // The file itself, where a symbolic link leads to it.
                let path = fs::canonicalize(path).map_err(failed)?;
                let mut beside = path.as_os_str().to_owned();
                beside.push(".tmp");
                let file = File::create(&beside).map_err(failed)?;
                Ok(Self { path, beside: Some(beside.into()), is_ours: true, file })
            }
            _ => {
                let file = OpenOptions::new().write(true).create_new(true).open(&path);
                let file = file.map_err(failed)?;
                Ok(Self { path, beside: None, is_ours: true, file })
            }
        }
    }

    /// Lets it be written, and makes it durable.
    ///
    /// # Errors
    /// Those of `write`, and of the file; what was there before is there still.
    pub(crate) fn fill<T>(
        mut self,
        write: impl FnOnce(&mut dyn Write) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let written = write(&mut self.file).and_then(|summary| {
            let finished = self.finish();
            let failed = |error| Failure::environment(format!("{}: {error}", self.path.display()));
            finished.map(|()| summary).map_err(failed)
        });
        if written.is_err() && self.is_ours {
            // The failure is what matters; what is left of the file is no whole export.
            let _ = fs::remove_file(self.beside.as_ref().unwrap_or(&self.path));
        }
        written
    }

    fn finish(&self) -> io::Result<()> {
        if self.is_ours {
            self.file.sync_all()?;
        }
        self.beside.as_ref().map_or(Ok(()), |beside| fs::rename(beside, &self.path))
    }
}

/// Tells how many bytes have been read.
pub(crate) struct Counted<'a>(pub(crate) &'a mut dyn Read, pub(crate) &'a mut dyn FnMut(u64));

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(buffer)?;
        (self.1)(read as u64);
        Ok(read)
    }
}
