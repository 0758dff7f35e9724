//! The bytes of a simulated file, in shared pages: a copy costs one count per page, and a write to
//! the copy only the pages that it touches.

use std::sync::Arc;

/// The unit that survives a loss of power in whole or not at all, in bytes.
pub(super) const SECTOR_BYTES: usize = 512;

/// The unit of sharing and of the space that files occupy, in bytes.
pub(super) const PAGE_BYTES: usize = 4096;

type Page = [u8; PAGE_BYTES];

/// Bytes, of which pages never written are not stored.
#[derive(Debug, Clone, Default)]
pub(super) struct Image {
    /// Pages from the start; `None`, or beyond the end, is zeros.
    pages: Vec<Option<Arc<Page>>>,
    len: u64,
    /// Pages that are stored.
    stored: u64,
}

impl Image {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes that the file occupies.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.stored * PAGE_BYTES as u64
    }

    /// Copies the bytes from `offset` on to the front of `buffer`; returns how many there were.
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> usize {
        let left = self.len.saturating_sub(offset);
        let found = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        for (page, within, piece) in pieces(offset, found) {
            let target = &mut buffer[piece];
            match self.pages.get(page) {
                Some(Some(page)) => target.copy_from_slice(&page[within..within + target.len()]),
                _ => target.fill(0),
            }
        }
        found
    }

    /// Writes `bytes` at `offset` without changing the length: what lies beyond it shows up if the
    /// length grows later.
    pub(super) fn put(&mut self, bytes: &[u8], offset: u64) {
        for (page, within, piece) in pieces(offset, bytes.len()) {
            if page >= self.pages.len() {
                self.pages.resize(page + 1, None);
            }
            let source = &bytes[piece];
            let slot = &mut self.pages[page];
            self.stored += u64::from(slot.is_none());
            // A whole page takes the place of the old one, which need not be copied.
            if let Ok(whole) = <&Page>::try_from(source) {
                *slot = Some(Arc::new(*whole));
                continue;
            }
            let page = Arc::make_mut(slot.get_or_insert_with(|| Arc::new([0; PAGE_BYTES])));
            page[within..within + source.len()].copy_from_slice(source);
        }
    }

    /// Writes `bytes` at `offset`; the file grows if need be.
    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) {
        self.put(bytes, offset);
        self.len = self.len.max(offset + bytes.len() as u64);
    }

    /// Raises the length without touching bytes.
    pub(super) fn grow(&mut self, len: u64) {
        self.len = self.len.max(len);
    }

    /// Sets the length; what lay beyond a smaller one is gone.
    pub(super) fn set_len(&mut self, len: u64) {
        self.len = len;
        self.cut();
    }

    /// Drops what lies beyond the length.
    pub(super) fn cut(&mut self) {
        let last = usize::try_from(self.len / PAGE_BYTES as u64).expect("lengths are bounded");
        let within = usize::try_from(self.len % PAGE_BYTES as u64).expect("below a page");
        if self.pages.len() <= last {
            return;
        }

        // Pages behind the end go, so that a file that grows again shows zeros there.
        let gone = self.pages.drain(last + 1..).flatten().count();
        self.stored -= gone as u64;
        if within == 0 {
            self.stored -= u64::from(self.pages[last].is_some());
            self.pages.pop();
        } else if let Some(page) = &mut self.pages[last]
            && page[within..].iter().any(|&byte| byte != 0)
        {
            Arc::make_mut(page)[within..].fill(0);
        }
    }

    /// Pages that a write would have to store anew.
    pub(super) fn new_pages(&self, offset: u64, len: usize) -> u64 {
        let is_new = |page: usize| self.pages.get(page).is_none_or(Option::is_none);
        pieces(offset, len).filter(|&(page, ..)| is_new(page)).count() as u64
    }

    /// Flips a bit, counted from the lowest one of the first byte; none beyond the end.
    pub(super) fn flip_bit(&mut self, bit: u64) {
        let offset = bit / 8;
        let mut byte = [0];
        if self.read(&mut byte, offset) == 1 {
            self.put(&[byte[0] ^ (1 << (bit % 8))], offset);
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.len).expect("lengths are bounded")];
        self.read(&mut bytes, 0);
        bytes
    }
}

/// The page number, the place within the page and the range of the buffer of each piece of `len`
/// bytes at `offset`.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
    split(offset, len, PAGE_BYTES).map(move |range| {
        let start = offset + range.start as u64;
        let page = usize::try_from(start / PAGE_BYTES as u64).expect("offsets are bounded");
        let within = usize::try_from(start % PAGE_BYTES as u64).expect("below a page");
        (page, within, range)
    })
}

/// The ranges that `len` bytes at `offset` fall into when cut at the multiples of `unit` of the
/// file.
pub(super) fn split(
    offset: u64,
    len: usize,
    unit: usize,
) -> impl Iterator<Item = std::ops::Range<usize>> {
    let within = usize::try_from(offset % unit as u64).expect("below the unit");
    let mut start = 0;
    std::iter::from_fn(move || {
        if start == len {
            return None;
        }
        // Pieces end at multiples of the unit in the file, not in the buffer.
        let end = len.min((within + start) / unit * unit + unit - within);
        let range = start..end;
        start = end;
        Some(range)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_at_multiples_in_the_file() {
        let cut = |offset, len| split(offset, len, 512).collect::<Vec<_>>();
        assert_eq!(cut(500, 600), [0..12, 12..524, 524..600]);
        assert_eq!(cut(512, 512), std::iter::once(0..512).collect::<Vec<_>>());
        assert_eq!(cut(3, 0), []);
    }

    /// Against a plain vector, with copies taken on the way that must not change.
    #[test]
    fn images_agree_with_a_vector_and_copies_stand_still() {
        let seed = 7;
        let mut random = crate::sim::sim::random::Random::new(seed);
        let mut image = Image::default();

        let mut model: Vec<u8> = Vec::new();
        let mut copies = Vec::new();
        for step in 0..400 {
            let offset = random.index(20_000);
            let len = random.index(9_000);
            if random.chance(1, 4) {
                image.set_len(offset as u64);
                model.resize(offset, 0);
            } else {
                let bytes: Vec<u8> = (0..len).map(|_| random.next().to_le_bytes()[0]).collect();
                image.write(&bytes, offset as u64);
                model.resize(model.len().max(offset + len), 0);
                model[offset..offset + len].copy_from_slice(&bytes);
            }

            assert_eq!(image.to_bytes(), model, "seed {seed} step {step}");
            let stored = image.pages.iter().flatten().count() as u64;
            assert_eq!(image.stored, stored, "seed {seed} step {step}");

            if step % 50 == 0 {
                copies.push((image.clone(), model.clone()));
            }
        }

        for (copy, model) in copies {
            assert_eq!(copy.to_bytes(), model);
        }
    }
}
