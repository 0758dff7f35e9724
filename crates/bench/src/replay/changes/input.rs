//! The lines of a history: plain or compressed files and standard input.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// A longer line is no record but a file of another kind.
const LINE_SIZE_MAX: u64 = 1 << 30;
/// How much of a frame is decoded at a time.
const DECODED_SIZE: usize = 1 << 20;

/// Reads a history line by line. A line lies in memory, never the file.
pub(super) struct Lines {
    reader: Box<dyn BufRead>,
    line: Vec<u8>,
    /// Number of the line read last, from 1.
    pub(super) number: u64,
}

impl Lines {
    /// Opens a file by its name: `.gz` and `.zst` are decompressed, `-` is standard input.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let reader: Box<dyn BufRead> = if path == Path::new("-") {
            Box::new(io::stdin().lock())
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
        Ok(Self { reader, line: Vec::new(), number: 0 })
    }

    /// Returns the next line without its line feed; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<&[u8]>> {
        self.line.clear();
        self.number += 1;
        let size = (&mut self.reader).take(LINE_SIZE_MAX).read_until(b'\n', &mut self.line)?;
        if size == 0 {
            return Ok(None);
        }
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        } else if size as u64 == LINE_SIZE_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the line has no end"));
        }
        Ok(Some(&self.line))
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
            if self.decoder.is_finished() {
                let (stated, computed) =
                    (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum());
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

/// Where in the input something is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file; `-` is standard input.
    pub path: PathBuf,
    /// The number of the line, from 1.
    pub line: u64,
}

impl std::fmt::Display for Place {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} line {}", self.path.display(), self.line)
    }
}
