//! Choices and changes, read from the bytes of a fuzzer.
//!
//! Invariant: each choice takes as many bytes as it needs and no more, so a change of one byte
//! changes one choice. Behind the end every byte is zero: any bytes are an input.

use std::path::Path;
use std::sync::Arc;

use terrane_io::SimDisk;

/// Changes of one file or proof at most: several rules broken jointly, and an end.
const CHANGES_MAX: usize = 6;

/// Reader of choices.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    /// Whether no byte is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *byte
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | (u32::from(self.u16()) << 16)
    }

    /// An index into something of `count` elements, which are some.
    pub(crate) fn index(&mut self, count: usize) -> usize {
        assert!(count > 0, "there is something to choose");
        let number = if count <= 256 { u32::from(self.byte()) } else { self.u32() };
        number as usize % count
    }

    /// Some bytes, fewer at the end.
    pub(crate) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// Changes `bytes`, several times while the input lasts.
    pub(crate) fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..CHANGES_MAX {
            if self.is_empty() || bytes.is_empty() {
                return;
            }
            self.damage_once(bytes);
        }
    }

    fn damage_once(&mut self, bytes: &mut Vec<u8>) {
        let how = self.byte() % 9;
        let at = self.index(bytes.len());
        match how {
            0 => bytes[at] ^= 1 << (self.byte() % 8),
            1 => bytes[at] = self.byte(),
            2 => put(bytes, at, &self.u16().to_le_bytes()),
            3 => put(bytes, at, &self.u32().to_le_bytes()),
            // Numbers at the edges of their range.
            4 => put(bytes, at, &[[0_u8; 9], [0xff; 9]][self.index(2)][..=self.index(8)]),
            5 => bytes.truncate(at),
            6 => {
                let end = bytes.len().min(at + 1 + self.index(64));
                bytes.drain(at..end);
            }
            7 => {
                let count = 1 + self.index(32);
                let inserted = self.bytes(count).to_vec();
                bytes.splice(at..at, inserted);
            }
            // Some bytes of it stand where others were.
            _ => {
                let from = self.index(bytes.len());
                let end = bytes.len().min(from + 1 + self.index(64));
                let moved = bytes[from..end].to_vec();
                put(bytes, at, &moved);
            }
        }
    }

    /// Changes files of `disk` below `dir`; returns whether any is another now.
    pub(crate) fn damage_files(&mut self, disk: &Arc<SimDisk>, dir: &Path) -> bool {
        let files = disk.files();
        let files: Vec<_> = files.iter().filter(|path| path.starts_with(dir)).collect();
        let mut is_changed = false;
        for _ in 0..=self.index(2) {
            let path = files[self.index(files.len())];
            let whole = disk.read_raw(path).unwrap_or_default();
            let mut bytes = whole.clone();
            self.damage(&mut bytes);
            is_changed |= bytes != whole;
            disk.write_raw(path, &bytes);
        }

        is_changed
    }
}

/// Overwrites `bytes` from `at` on, up to its end.
fn put(bytes: &mut [u8], at: usize, new: &[u8]) {
    let count = new.len().min(bytes.len() - at);
    bytes[at..at + count].copy_from_slice(&new[..count]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bytes_change_nothing_and_each_way_changes_something() {
        let whole: Vec<u8> = (0..200).collect();
        let mut bytes = whole.clone();
        Input(&[]).damage(&mut bytes);
        assert_eq!(bytes, whole);

        for how in 0..9 {
            let mut bytes = whole.clone();
            Input(&[how, 7, 90, 91, 92, 93]).damage_once(&mut bytes);
            assert_ne!(bytes, whole, "way {how}");
        }
    }
}
