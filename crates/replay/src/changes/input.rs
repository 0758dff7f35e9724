//! The lines of a history: plain or compressed files and standard input.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// A line longer than this is taken for a file of another kind, unless the caller says otherwise.
pub const LINE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a frame decoded at a time.
const DECODED_SIZE: usize = 1 << 20;
/// Bytes of standard input passed on at a time, at most.
const CHUNK_SIZE: usize = 1 << 16;
/// Chunks of standard input that may lie ready.
const CHUNKS_MAX: usize = 4;
/// Longest wait of a reader for standard input before it asks the monitor again.
const PATIENCE: Duration = Duration::from_millis(50);

/// Reads a history line by line. A line lies in memory, never the file.
pub(super) struct Lines {
    reader: Box<dyn BufRead>,
    line: Vec<u8>,
    /// Bytes that a line may have, its line feed included.
    bytes_max: u64,
    /// Reading stopped within the line.
    is_partial: bool,
    /// Number of the line read last, or being read, from 1.
    pub(super) number: u64,
}

impl Lines {
    /// Opens a file by its name: `.gz` and `.zst` are decompressed, `-` is standard input.
    /// A line has at most `bytes_max` bytes.
    pub(super) fn open(path: &Path, bytes_max: u64) -> io::Result<Self> {
        let reader: Box<dyn BufRead> = if path == Path::new("-") {
            Box::new(BufReader::with_capacity(CHUNK_SIZE, StandardInput::new()?))
        } else {
            let file = File::open(path)?;
            if file.metadata()?.is_dir() {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            let file = BufReader::with_capacity(1 << 16, file);
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("gz") => Box::new(BufReader::new(MultiGzDecoder::new(file))),
                Some("zst") => Box::new(BufReader::new(ZstdFrames::new(file))),
                _ => Box::new(file),
            }
        };

        Ok(Self { reader, line: Vec::new(), bytes_max, is_partial: false, number: 0 })
    }

    /// Returns the number of the next line and the line without its line feed; `None` at the end.
    ///
    /// # Errors
    /// An error of kind `WouldBlock` if standard input is empty for now: repeat the call
    /// later. Any other error ends the file.
    pub(super) fn next(&mut self) -> io::Result<(u64, Option<&[u8]>)> {
        if !self.is_partial {
            self.line.clear();
            self.number += 1;
        }

        // A line without an end must not fill the memory.
        let left = self.bytes_max.saturating_sub(self.line.len() as u64);
        let read = (&mut self.reader).take(left).read_until(b'\n', &mut self.line);
        self.is_partial =
            read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        read?;

        let size = self.line.len();
        if size == 0 {
            return Ok((self.number, None));
        }

        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        } else if size as u64 >= self.bytes_max {
            let message = format!("the line has more than {} bytes", self.bytes_max);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }

        Ok((self.number, Some(&self.line)))
    }
}

/// Standard input, read by a thread of its own: a call that waits for it cannot be interrupted, the
/// thread can be left alone. The thread ends with the input, with the process, or with its reader.
struct StandardInput {
    chunks: Receiver<io::Result<Vec<u8>>>,
    chunk: io::Cursor<Vec<u8>>,
}

impl StandardInput {
    fn new() -> io::Result<Self> {
        let (sender, chunks) = sync_channel(CHUNKS_MAX);
        thread::Builder::new().name("standard input".to_owned()).spawn(move || {
            loop {
                let mut chunk = vec![0; CHUNK_SIZE];
                let read = match io::stdin().read(&mut chunk) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    // A non-blocking descriptor says this; for the caller the kind has another
                    // meaning.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        Err(io::Error::other(error))
                    }
                    read => read,
                };
                let is_last = !read.as_ref().is_ok_and(|&size| size > 0);
                let read = read.map(|size| {
                    chunk.truncate(size);
                    chunk
                });
                // The receiver is gone when the replay has ended.
                if sender.send(read).is_err() || is_last {
                    return;
                }
            }
        })?;

        Ok(Self { chunks, chunk: io::Cursor::default() })
    }
}

impl Read for StandardInput {
    /// Fails with `WouldBlock` if nothing came for a while.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let size = self.chunk.read(buffer)?;
        if size > 0 || buffer.is_empty() {
            return Ok(size);
        }
        match self.chunks.recv_timeout(PATIENCE) {
            Ok(chunk) => self.chunk = io::Cursor::new(chunk?),
            Err(RecvTimeoutError::Timeout) => return Err(io::ErrorKind::WouldBlock.into()),
            // The thread has reported the end of the input, and ended.
            Err(RecvTimeoutError::Disconnected) => return Ok(0),
        }

        self.chunk.read(buffer)
    }
}

/// Decodes the frames of a zstd file one after the other, as `zstd -d` does.
struct ZstdFrames<R> {
    source: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> ZstdFrames<R> {
    fn new(source: R) -> Self {
        Self { source, decoder: FrameDecoder::new(), in_frame: false }
    }

    /// Begins the next frame; `false` at the end of the file.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skipped =
                        io::copy(&mut (&mut self.source).take(length.into()), &mut io::sink())?;
                    if skipped < length.into() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(damaged(error)),
            }
        }

        Ok(false)
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.in_frame {
                if !self.begin()? {
                    return Ok(0);
                }
                self.in_frame = true;
            }

            if self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBytes(DECODED_SIZE))
                    .map_err(damaged)?;
            }

            let size = self.decoder.read(buffer)?;
            if size > 0 || buffer.is_empty() {
                return Ok(size);
            }

            // Read to its end: only then the checksum of the frame is known.
            if self.decoder.is_finished() {
                let stated = self.decoder.get_checksum_from_data();
                let computed = self.decoder.get_calculated_checksum();
                if stated.is_some() && computed.is_some() && stated != computed {
                    return Err(damaged("the checksum of a frame is wrong"));
                }
                self.in_frame = false;
            }
        }
    }
}

fn damaged(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, cause)
}

/// Place in the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinePlace {
    /// The file; `-` is standard input.
    pub path: PathBuf,
    /// The number of the line, from 1.
    pub line: u64,
}

impl std::fmt::Display for LinePlace {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} line {}", self.path.display(), self.line)
    }
}
