//! Bitcoin Core's block files: finding the records, reading one block at a time.
//!
//! A file is a row of records, each network magic (4) ‖ size of the block (u32-LE) ‖ block, with
//! zero bytes between and after them (Core allocates ahead). A directory may hold `xor.dat`, eight
//! bytes that every byte of its block files is combined with, by the offset in the file; bytes that
//! Core never wrote are plain zeros even then. The last record may be cut by the end of the file.
//!
//! A scan reads 88 bytes per record and stops in a file where the framing breaks, since what
//! follows cannot be told apart any more. A block tells its own size, which shows whether a size
//! field lies; whether another record follows decides between damage and a file that just ends.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use bitcoin::block::Header;
use bitcoin::consensus::{Decodable as _, deserialize};
use bitcoin::{Block, BlockHash, Network, Target};

use super::error::Error;
use crate::monitor::{Monitor, Phase};

const HEADER_SIZE: usize = 80;
/// Magic and size, before the block itself.
const FRAME_SIZE: u64 = 8;
/// The most that a block can take, by consensus.
const BLOCK_SIZE_MAX: u32 = 4_000_000;
const CHUNK_SIZE: usize = 64 << 10;

/// Location of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) file: u32,
    /// Offset of the record, in bytes from the start of the file.
    pub(super) offset: u64,
    /// Size of the block, in bytes.
    pub(super) size: u32,
}

/// A header that a scan found.
#[derive(Debug, Clone, Copy)]
pub(super) struct FoundHeader {
    pub(super) header: Header,
    pub(super) hash: BlockHash,
    pub(super) location: Location,
    /// Whether the hash meets a target that the network allows.
    pub(super) has_work: bool,
}

/// Records found in a file so far.
#[derive(Debug, Default)]
struct Scan {
    found: Vec<FoundHeader>,
    /// Framing that is damaged in the midst of the file; reading stopped there.
    damage: Option<Error>,
}

#[derive(Debug)]
struct BlockFile {
    path: PathBuf,
    size: u64,
    key: [u8; 8],
}

/// The block files of a replay; one of them is open at a time.
#[derive(Debug)]
pub(super) struct BlockFiles {
    network: Network,
    files: Vec<BlockFile>,
    open: Option<(u32, File)>,
}

/// Content of a place where a record may begin.
enum RecordStart {
    Record(u64),
    Garbage(u64),
    End,
}

impl BlockFiles {
    /// Lists the files that `paths` stand for: files as they are, directories by their `blk*.dat`.
    ///
    /// # Errors
    /// [`Error::Path`] for what is not there or holds no block files, [`Error::Read`].
    pub(super) fn new(network: Network, paths: &[PathBuf]) -> Result<Self, Error> {
        let mut files = Vec::new();
        for path in paths {
            let meta = std::fs::metadata(path).map_err(|source| unreadable(path, source))?;
            if !meta.is_dir() {
                // The key of obfuscation stands beside the block files.
                let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
                let key = obfuscation_key(dir.unwrap_or(Path::new(".")))?;
                files.push(BlockFile { path: path.clone(), size: meta.len(), key });
                continue;
            }

            let key = obfuscation_key(path)?;
            let before = files.len();
            for entry in std::fs::read_dir(path).map_err(|source| unreadable(path, source))? {
                let entry = entry.map_err(|source| unreadable(path, source))?;
                let name = entry.file_name();
                let Some(name) = name.to_str() else { continue };
                let path = entry.path();
                if name.starts_with("blk") && path.extension().is_some_and(|end| end == "dat") {
                    let meta = std::fs::metadata(&path);
                    let size = meta.map_err(|source| unreadable(&path, source))?.len();
                    files.push(BlockFile { path, size, key });
                }
            }

            let added = files.get_mut(before..).unwrap_or_default();
            if added.is_empty() {
                let what = "the directory has no blk*.dat";
                return Err(Error::Path { path: path.clone(), what });
            }

            // In the order of their names, in which the node wrote them.
            added.sort_by(|one, other| one.path.cmp(&other.path));
        }

        Ok(Self { network, files, open: None })
    }

    /// Returns the path of a file.
    pub(super) fn path(&self, file: u32) -> PathBuf {
        self.files.get(file as usize).map(|file| file.path.clone()).unwrap_or_default()
    }

    /// Gives all headers to `visit`, in the order in which they stand. Returns the damage to the
    /// framing, in the midst of files. Stops early when the monitor says so.
    ///
    /// # Errors
    /// [`Error::Read`].
    pub(super) fn scan(
        &mut self,
        monitor: &mut dyn Monitor,
        mut visit: impl FnMut(FoundHeader),
    ) -> Result<Vec<Error>, Error> {
        let total = self.files.iter().map(|file| file.size).sum();

        let mut damage = Vec::new();
        let mut before = 0;
        for file in 0..u32::try_from(self.files.len()).unwrap_or(u32::MAX) {
            let mut scan = Scan::default();
            let mut position = 0;
            while !monitor.stop() {
                let Some(found) = self.record(file, position, &mut scan, monitor)? else { break };
                position = found.location.offset + FRAME_SIZE + u64::from(found.location.size);
                scan.found.push(found);
                if scan.found.len().is_multiple_of(256) {
                    monitor.progress(Phase::Scan, before + position, Some(total));
                }
            }

            // The position moves only here, because the record before damage may have to be taken
            // back.
            scan.found.into_iter().for_each(&mut visit);
            damage.extend(scan.damage);
            before += self.size(file);
        }

        Ok(damage)
    }

    /// Reads the header of the record that begins at or after `position`; `None` at the end of what
    /// can be read of this file.
    fn record(
        &mut self,
        file: u32,
        position: u64,
        scan: &mut Scan,
        monitor: &mut dyn Monitor,
    ) -> Result<Option<FoundHeader>, Error> {
        let offset = match self.skip_padding(file, position)? {
            RecordStart::End => return Ok(None),
            RecordStart::Record(offset) => offset,
            RecordStart::Garbage(offset) => {
                scan.damage = self.explain_garbage(file, offset, &mut scan.found, monitor)?;
                return Ok(None);
            }
        };

        let path = self.path(file);
        let left = self.size(file) - offset;

        let mut frame = [0; FRAME_SIZE as usize + HEADER_SIZE];
        // A record that is shorter than a header is cut off.
        let fits = left >= frame.len() as u64;
        if fits {
            self.read_at(file, offset, &mut frame)?;
        }
        let (size, header) = split_frame(&frame);

        // The last record may be cut off, since the node may be writing it.
        if !fits || size > BLOCK_SIZE_MAX || FRAME_SIZE + u64::from(size) > left {
            if self.next_record(file, offset + 4)?.is_none() {
                let path = path.display();
                monitor.warn(&format_args!("{path}: the record at byte {offset} is cut off"));
            } else {
                let what = format!("the size of the block cannot be {size} bytes");
                scan.damage = Some(Error::Framing { path, offset, what });
            }
            return Ok(None);
        }

        let location = Location { file, offset, size };
        let Some(header) = header else {
            return Err(Error::Framing { path, offset, what: "the header is cut".to_owned() });
        };
        let hash = header.block_hash();
        let has_work = has_work(&header, self.network);

        Ok(Some(FoundHeader { header, hash, location, has_work }))
    }

    /// Says what is wrong where neither a record nor padding stands. The record before may have a
    /// wrong size, in which case it is taken back. `None`: a file that merely ends badly.
    fn explain_garbage(
        &mut self,
        file: u32,
        offset: u64,
        found: &mut Vec<FoundHeader>,
        monitor: &mut dyn Monitor,
    ) -> Result<Option<Error>, Error> {
        let path = self.path(file);
        let Some(previous) = found.last().map(|found| found.location) else {
            let what = format!("no block of {} begins here", self.network);
            return Ok(Some(Error::Framing { path, offset, what }));
        };

        // The block before may lie about its size, so that the garbage begins within it.
        let own_size = self.own_size(previous)?;
        let lying = own_size.filter(|&own| own != u64::from(previous.size));
        let searched_from = lying.map_or(offset, |_| previous.offset + FRAME_SIZE);
        let at_end = self.next_record(file, searched_from)?.is_none();

        // A block of a wrong size is not to be applied.
        if lying.is_some() {
            found.pop();
        }

        // At the end of a file the node may still have been writing.
        if at_end {
            let path = path.display();
            let offset = lying.map_or(offset, |_| previous.offset);
            monitor.warn(&format_args!("{path}: no whole record from byte {offset} to the end"));
            return Ok(None);
        }

        Ok(Some(match lying {
            Some(own) => {
                let what = format!("the size says {} bytes, the block has {own}", previous.size);
                Error::Framing { path, offset: previous.offset, what }
            }
            None => {
                let what = format!("neither a block of {} nor padding", self.network);
                Error::Framing { path, offset, what }
            }
        }))
    }

    /// Returns the size that the block at a place has by its own account; `None` if its
    /// transactions are damaged, and their sizes with them.
    fn own_size(&mut self, location: Location) -> Result<Option<u64>, Error> {
        let start = location.offset + FRAME_SIZE;
        let left = self.size(location.file) - start;
        // A damaged size must not ask for more memory than a block can take.
        let size = usize::try_from(left.min(BLOCK_SIZE_MAX.into())).unwrap_or(usize::MAX);
        let mut bytes = vec![0; size];
        self.read_at(location.file, start, &mut bytes)?;
        let mut rest = bytes.as_slice();
        let block = Block::consensus_decode(&mut rest).ok();
        let whole = block.filter(Block::check_merkle_root);
        Ok(whole.map(|_| (size - rest.len()) as u64))
    }

    /// Reads a block.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Framing`] if the block is whole but of another size than the
    /// record says. The inner error says that the bytes are no block.
    pub(super) fn read(
        &mut self,
        location: Location,
    ) -> Result<Result<Block, bitcoin::consensus::encode::Error>, Error> {
        let Location { file, offset, size } = location;
        let mut bytes = vec![0; size as usize];
        self.read_at(file, offset + FRAME_SIZE, &mut bytes)?;
        let block = deserialize::<Block>(&bytes);

        if block.is_err()
            && let Some(own) = self.own_size(location)?.filter(|&own| own != u64::from(size))
        {
            let what = format!("the size says {size} bytes, the block has {own}");
            return Err(Error::Framing { path: self.path(file), offset, what });
        }

        Ok(block)
    }

    fn size(&self, file: u32) -> u64 {
        self.files.get(file as usize).map_or(0, |file| file.size)
    }

    /// Fills `bytes` with what stands at `offset`, without obfuscation.
    fn read_at(&mut self, file: u32, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.read_raw(file, offset, bytes)?;
        let key = self.key(file);
        for (byte, place) in bytes.iter_mut().zip(offset..) {
            *byte ^= key_byte(key, place);
        }
        Ok(())
    }

    fn read_raw(&mut self, file: u32, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let path = self.path(file);
        if self.open.as_ref().is_none_or(|(open, _)| *open != file) {
            let opened = File::open(&path).map_err(|source| unreadable(&path, source))?;
            self.open = Some((file, opened));
        }
        let Some((_, open)) = &mut self.open else { return Ok(()) };
        let read = open.seek(SeekFrom::Start(offset)).and_then(|_| open.read_exact(bytes));
        read.map_err(|source| unreadable(&path, source))
    }

    fn key(&self, file: u32) -> [u8; 8] {
        self.files.get(file as usize).map(|file| file.key).unwrap_or_default()
    }

    /// Finds what follows the padding at `position`.
    fn skip_padding(&mut self, file: u32, position: u64) -> Result<RecordStart, Error> {
        let key = self.key(file);
        let magic = self.network.magic().to_bytes();
        let end = self.size(file);

        let mut chunk_start = position;
        while chunk_start < end {
            let mut chunk = vec![0; chunk_size(end - chunk_start)];
            self.read_raw(file, chunk_start, &mut chunk)?;
            for (&raw, place) in chunk.iter().zip(chunk_start..) {
                let byte = raw ^ key_byte(key, place);
                if byte == magic[0] && self.stands_at(file, place, magic)? {
                    return Ok(RecordStart::Record(place));
                }
                if raw != 0 && byte != 0 {
                    // Padding of less than a magic is more likely part of the damage.
                    let from = if place - position < 4 { position } else { place };
                    return Ok(RecordStart::Garbage(from));
                }
            }
            chunk_start += chunk.len() as u64;
        }

        Ok(RecordStart::End)
    }

    /// Whether the file goes on with `magic`, as far as it goes on.
    fn stands_at(&mut self, file: u32, offset: u64, magic: [u8; 4]) -> Result<bool, Error> {
        let mut bytes = magic;
        let left = chunk_size(self.size(file) - offset).min(magic.len());
        let (bytes, _) = bytes.split_at_mut(left);
        self.read_at(file, offset, bytes)?;
        Ok(magic.starts_with(bytes))
    }

    /// Returns where the next record begins that has a plausible size and a header with work, at or
    /// after `position`. Magic alone proves nothing: anybody can put it into a script.
    fn next_record(&mut self, file: u32, position: u64) -> Result<Option<u64>, Error> {
        let magic = self.network.magic().to_bytes();
        let end = self.size(file);

        let mut chunk_start = position;
        while chunk_start < end {
            let mut chunk = vec![0; chunk_size(end - chunk_start)];
            self.read_at(file, chunk_start, &mut chunk)?;

            let mut places: Vec<_> =
                chunk.windows(4).zip(chunk_start..).filter(|(bytes, _)| *bytes == magic).collect();
            for (_, place) in places.drain(..) {
                let mut frame = [0; FRAME_SIZE as usize + HEADER_SIZE];
                if end - place < frame.len() as u64 {
                    return Ok(None);
                }
                self.read_at(file, place, &mut frame)?;
                let (size, header) = split_frame(&frame);
                let network = self.network;
                if size <= BLOCK_SIZE_MAX && header.is_some_and(|header| has_work(&header, network))
                {
                    return Ok(Some(place));
                }
            }

            // A magic may lie across the border of two chunks.
            let advance = chunk.len() as u64;
            chunk_start += if advance > 3 { advance - 3 } else { advance };
        }

        Ok(None)
    }
}

fn chunk_size(left: u64) -> usize {
    usize::try_from(left).map_or(CHUNK_SIZE, |left| left.min(CHUNK_SIZE))
}

fn key_byte(key: [u8; 8], offset: u64) -> u8 {
    key[(offset % 8) as usize]
}

fn split_frame(frame: &[u8; FRAME_SIZE as usize + HEADER_SIZE]) -> (u32, Option<Header>) {
    let [_, _, _, _, a, b, c, d, header @ ..] = frame;
    (u32::from_le_bytes([*a, *b, *c, *d]), deserialize(header).ok())
}

/// Whether a header's hash meets its own target, and that one is not easier than the network
/// allows.
fn has_work(header: &Header, network: Network) -> bool {
    // A target above 2^256 would lose its upper bits when it is expanded.
    let exponent = header.bits.to_consensus() >> 24;
    if exponent > 32 {
        return false;
    }
    let target = header.target();
    target != Target::ZERO
        && target <= network.params().max_attainable_target
        && target.is_met_by(header.block_hash())
}

fn obfuscation_key(dir: &Path) -> Result<[u8; 8], Error> {
    let path = dir.join("xor.dat");
    match std::fs::read(&path) {
        Ok(bytes) => bytes
            .try_into()
            .map_err(|_| Error::Path { path, what: "an obfuscation key has eight bytes" }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok([0; 8]),
        Err(source) => Err(unreadable(&path, source)),
    }
}

fn unreadable(path: &Path, source: io::Error) -> Error {
    let path = path.to_path_buf();
    match source.kind() {
        io::ErrorKind::NotFound => Error::Path { path, what: "no such file or directory" },
        io::ErrorKind::UnexpectedEof => Error::Path { path, what: "the file has become shorter" },
        _ => Error::Read { path, source },
    }
}
