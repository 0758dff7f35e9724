//! Fills compressed key pages: decides how many entries go on each, by the ratio of the pages
//! before.
//!
//! The packer lets a [`PageBuilder`] grow beyond a page, to as much as pages have compressed into
//! one so far, and compresses its image. If the image does not fill the page, the builder may grow
//! on; if the image is too long, its last entries stay for the next page. If a codec brings hardly
//! more entries than fit without one, the page is written without, so that incompressible data
//! costs readers next to nothing.
//!
//! Invariant: a page that is written holds at least one entry; entries that stay are in order.

use crate::block::codec::{Codec, Compression, Compressor};
use crate::block::page::{
    HEADER_SIZE, IMAGE_SIZE_MAX, PAGE_SIZE, PAYLOAD_SIZE, PageAddress, PageBuilder,
    encode_compressed, prepare_image,
};

/// Times that one page is compressed to find out whether more entries fit.
const GROWTHS_MAX: u32 = 2;

/// Bytes that a page may leave unused rather than be compressed again.
const SLACK_BYTES: usize = PAYLOAD_SIZE / 32;

/// A codec is used if it brings at least a sixteenth more entries on a page: a reader pays for it.
const GAIN_DIVISOR: usize = 16;

/// Bytes that a builder may have at least when its page is to be compressed: an eighth more than
/// fits without a codec, so that it shows whether the codec helps.
const IMAGE_SIZE_MIN: usize = PAGE_SIZE + PAGE_SIZE / 8;

/// Pages in a row that a codec did not help, after which it is asked about only every so many
/// pages.
const HOPELESS_PAGES: u32 = 16;

/// Decision about a page: how many entries, and in which form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackedPage {
    /// How many of the first entries go on the page.
    pub(crate) count: usize,
    /// The codec; `None` for a page that is not compressed.
    pub(crate) codec: Option<Codec>,
}

/// A compressed image that fits on a page.
#[derive(Debug, Default)]
struct Fitting {
    /// How many entries it has; 0 for none.
    count: usize,
    header: [u8; HEADER_SIZE],
    image_size: usize,
    compressed: Vec<u8>,
}

/// Fills pages for one codec.
#[derive(Debug)]
pub(crate) struct PagePacker {
    compressor: Compressor,
    image: Vec<u8>,
    scratch: Vec<u8>,
    /// The image that was compressed last, and the longest one that fits.
    last: Fitting,
    best: Fitting,
    /// How often the page was compressed to see whether more entries fit.
    growths: u32,
    /// Pages in a row that were not compressed.
    uncompressed: u32,
    /// Bytes of image that a page is expected to hold.
    expected_size: usize,
}

impl PagePacker {
    /// Packs pages for this configuration; `None` if it compresses nothing.
    pub(crate) fn new(compression: Compression, builder: &mut PageBuilder) -> Option<Self> {
        let compressor = Compressor::new(compression)?;
        let expected_size = PAGE_SIZE + PAGE_SIZE / 2;
        builder.set_limit(expected_size);
        Some(Self {
            compressor,
            image: Vec::new(),
            scratch: Vec::new(),
            last: Fitting::default(),
            best: Fitting::default(),
            growths: 0,
            uncompressed: 0,
            expected_size,
        })
    }

    /// Decides about the page that the entries of `builder` begin, once the next entry has found no
    /// room there, or none follows (`is_last`). Returns `None` if the builder may have more entries
    /// first.
    ///
    /// Cost: compresses up to 16 KiB once, or a few times while the ratio changes.
    pub(crate) fn pack(&mut self, builder: &mut PageBuilder, is_last: bool) -> Option<PackedPage> {
        debug_assert!(!builder.is_empty(), "a page has an entry");
        let uncompressed = builder.count_uncompressed();
        debug_assert!(uncompressed > 0, "an entry that fits on no page goes on in others");
        let all = builder.count();
        let worth = uncompressed + uncompressed.div_ceil(GAIN_DIVISOR);
        let mut count = if self.skips_codec() { 0 } else { all };

        while count >= worth && count > self.best.count {
            let len = self.compress(builder, count);
            if len > PAYLOAD_SIZE {
                // By the ratio of this image, and never as many as did not fit.
                count = (count * PAYLOAD_SIZE / len).min(count - 1);
                continue;
            }
            std::mem::swap(&mut self.last, &mut self.best);
            if count == all && !is_last && self.may_grow(builder, len) {
                return None;
            }
            break;
        }

        Some(self.decided(uncompressed))
    }

    /// Whether to leave the codec out: it has not helped for a while.
    fn skips_codec(&self) -> bool {
        self.uncompressed >= HOPELESS_PAGES && !self.uncompressed.is_multiple_of(HOPELESS_PAGES)
    }

    /// Compresses the first `count` entries; returns the length.
    fn compress(&mut self, builder: &PageBuilder, count: usize) -> usize {
        builder.image_of_first(count, &mut self.image);
        self.last.count = count;
        self.last.image_size = self.image.len();
        self.last.header = *self.image.first_chunk().expect("an image has a header");
        prepare_image(&mut self.image, &mut self.scratch);
        self.compressor.compress(&self.image[HEADER_SIZE..], &mut self.last.compressed);
        let len = self.last.compressed.len();
        let expected = self.last.image_size * PAYLOAD_SIZE / len.max(1);
        self.expected_size = expected.clamp(IMAGE_SIZE_MIN, IMAGE_SIZE_MAX);
        len
    }

    /// Lets the builder grow if the page that it makes now, of `len` bytes, has room for more.
    fn may_grow(&mut self, builder: &mut PageBuilder, len: usize) -> bool {
        let slack = PAYLOAD_SIZE - len;
        let size = self.best.image_size;
        // An entry more must fit, and there must be enough of them to be worth the work.
        let is_worth = slack > SLACK_BYTES.max(2 * len / self.best.count);
        if !is_worth || self.growths >= GROWTHS_MAX || self.expected_size <= size {
            return false;
        }
        self.growths += 1;
        builder.set_limit(self.expected_size);
        true
    }

    fn decided(&self, uncompressed: usize) -> PackedPage {
        if self.best.count > 0 {
            debug_assert!(self.best.count > uncompressed, "a codec brings more entries");
            let codec = Some(self.compressor.codec());
            return PackedPage { count: self.best.count, codec };
        }
        PackedPage { count: uncompressed, codec: None }
    }

    /// Writes the page that was decided for, and drops its entries from the builder.
    pub(crate) fn write(
        &mut self,
        packed: PackedPage,
        builder: &mut PageBuilder,
        page: &mut [u8],
        place: PageAddress,
    ) {
        match packed.codec {
            Some(codec) => {
                debug_assert_eq!(packed.count, self.best.count);
                let Fitting { header, image_size, compressed, .. } = &self.best;
                encode_compressed(page, place, codec, (*header, *image_size), compressed);
                self.uncompressed = 0;
            }
            None => {
                builder.write_first(packed.count, page, place, 0);
                self.uncompressed = self.uncompressed.saturating_add(1);
            }
        }

        builder.drop_first(packed.count);
        self.best.count = 0;
        self.growths = 0;
        // Where the codec is left out, the builder need hold no more than a page does.
        let limit = if self.skips_codec() { PAGE_SIZE } else { self.expected_size };
        builder.set_limit(limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::page::{PageLayout, check_crc, reseal};
    use crate::entry::entry::{BlobSpan, EntryRef, KEY_BYTES_MAX, Kind};

    type Entry = (Vec<u8>, Kind, Vec<u8>);
    type ValueOf<'a> = &'a dyn Fn(u64) -> Vec<u8>;

    const PLACE: PageAddress = PageAddress { identity: 7, page: 3 };

    const CODECS: [Compression; 2] = [Compression::Lz4, Compression::Zstd];

    /// Packs entries as a run does, with all pages in one place.
    fn pack(compression: Compression, entries: &[Entry]) -> Vec<Vec<u8>> {
        let mut builder = PageBuilder::default();
        let mut packer = PagePacker::new(compression, &mut builder).unwrap();
        let mut pages = Vec::new();
        let mut close = |packer: &mut PagePacker, builder: &mut PageBuilder, is_last| {
            let before = builder.count();
            let Some(packed) = packer.pack(builder, is_last) else { return };
            let mut page = vec![9; PAGE_SIZE];
            packer.write(packed, builder, &mut page, PLACE);
            assert_eq!(builder.count(), before - packed.count);
            pages.push(page);
        };

        for (key, kind, value) in entries {
            let blob = BlobSpan { offset: 1 << 40 | value.len() as u64, len: 5 };
            let blob = if *kind == Kind::InsertBlob { blob } else { BlobSpan::default() };
            let entry = EntryRef { key, kind: *kind, value, blob };
            assert!(PageBuilder::fits_alone(entry));
            while !builder.push(entry) {
                close(&mut packer, &mut builder, false);
            }
        }
        while !builder.is_empty() {
            close(&mut packer, &mut builder, true);
        }
        pages
    }

    fn read(pages: &[Vec<u8>]) -> Vec<Entry> {
        let mut image = Vec::new();
        let mut entries = Vec::new();
        for page in pages {
            let layout = PageLayout::open(page, PLACE, &mut image).unwrap();
            let bytes = layout.bytes(page, &image);
            for index in 0..layout.count() {
                let key = [layout.prefix(bytes), layout.suffix(bytes, index)].concat();
                assert_eq!(layout.search(bytes, &key), Ok(index));
                let (value, blob) = layout.value(bytes, index);
                let kind = layout.kind(bytes, index);
                let offset =
                    if kind == Kind::InsertBlob { 1 << 40 | value.len() as u64 } else { 0 };
                assert_eq!(blob.offset, offset);
                entries.push((key, kind, value.to_vec()));
            }
        }
        entries
    }

    /// Bytes that no codec shortens.
    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let word = |at| xxhash_rust::xxh3::xxh3_64_with_seed(&[at], seed).to_le_bytes();
        (0..len.div_ceil(8)).flat_map(|at| word(at as u8)).take(len).collect()
    }

    /// Keys of hashes with values made of a number.
    fn entries(count: u64, value: impl Fn(u64) -> Vec<u8>) -> Vec<Entry> {
        let mut keys: Vec<_> = (0..count).map(|number| noise(!number, 32)).collect();
        keys.sort();
        let kinds = [Kind::Insert, Kind::Upsert, Kind::InsertBlob, Kind::Insert];
        let kind = |number: u64| kinds[(number / 5 % 4) as usize];
        (0..count).zip(keys).map(|(number, key)| (key, kind(number), value(number))).collect()
    }

    fn are_compressed(pages: &[Vec<u8>]) -> usize {
        let mut image = Vec::new();
        let is =
            |page: &&Vec<u8>| PageLayout::open(page, PLACE, &mut image).unwrap().is_compressed();
        pages.iter().filter(is).count()
    }

    #[test]
    fn what_is_packed_is_read_back_whatever_it_compresses_to() {
        let kinds_of_values: &[(&str, ValueOf)] = &[
            ("all alike", &|_| vec![7; 60]),
            ("half noise", &|number| [noise(number, 30), vec![0; 30]].concat()),
            ("noise", &|number| noise(number, 60)),
            ("empty", &|_| Vec::new()),
            ("long and short", &|number| vec![1; if number % 40 == 0 { 4_000 } else { 3 }]),
            ("ever longer noise", &|number| noise(number, number as usize % 900)),
            ("parts alike, parts noise", &|number| match number / 200 % 2 {
                0 => vec![3; 100],
                _ => noise(number, 100),
            }),
        ];
        for codec in CODECS {
            for (name, value) in kinds_of_values {
                let entries = entries(3_000, value);
                let pages = pack(codec, &entries);
                assert!(read(&pages) == entries, "{codec} {name}");
                assert!(pages.iter().all(|page| check_crc(page, PLACE).is_ok()), "{name}");
                let compressed = are_compressed(&pages);
                let is_noise = ["noise", "ever longer noise"].contains(name);
                // Lengths and kinds of entries compress: with zstd they now and then bring an
                // entry more.
                let most = if codec == Compression::Zstd { pages.len() / 8 } else { 0 };
                assert_eq!(compressed > most, !is_noise, "{codec} {name}: {compressed} pages");
            }
            assert!(pack(codec, &[]).is_empty());
            let single = [(noise(1, 32), Kind::Insert, vec![0; 4_000])];
            assert!(read(&pack(codec, &single)) == single);
            let long = [(vec![1; KEY_BYTES_MAX], Kind::Delete, Vec::new())];
            assert!(read(&pack(codec, &long)) == long);
        }
    }

    #[test]
    fn pages_are_full_once_the_ratio_is_known() {
        let entries = entries(20_000, |number| [noise(number, 20), vec![0; 40]].concat());
        for codec in CODECS {
            let pages = pack(codec, &entries);
            let unused = |page: &Vec<u8>| page.iter().rev().take_while(|byte| **byte == 0).count();
            let unused: usize = pages.iter().map(unused).sum();
            let share = unused as f64 / (pages.len() * PAGE_SIZE) as f64;
            assert!(share < 0.04, "{codec}: {share} of {} pages is unused", pages.len());
        }
    }

    #[test]
    fn noise_fills_pages_as_without_a_codec() {
        let entries = entries(20_000, |number| noise(number, 60));
        let mut builder = PageBuilder::default();
        let mut page = vec![0; PAGE_SIZE];
        let mut pages = 1;
        for (key, kind, value) in &entries {
            let entry = EntryRef { key, kind: *kind, value, blob: BlobSpan::default() };
            if !builder.push(entry) {
                builder.finish(&mut page, PLACE, 0);
                assert!(builder.push(entry));
                pages += 1;
            }
        }
        for codec in CODECS {
            let packed = pack(codec, &entries).len();
            let fewer = if codec == Compression::Zstd { pages / 100 } else { 0 };
            assert!((pages - fewer..=pages).contains(&packed), "{codec}: {packed} for {pages}");
        }
    }

    /// Fields that no packer writes, under a right checksum: refused, or read without a panic, in
    /// bounded memory.
    #[test]
    fn sealed_nonsense_never_panics_and_asks_for_no_memory() {
        CODECS.into_iter().for_each(refuses_nonsense);
    }

    fn refuses_nonsense(compression: Compression) {
        let pages = pack(compression, &entries(300, |number| vec![number as u8; 60]));
        let mut image = Vec::new();
        let mut try_open = |page: &mut Vec<u8>| {
            reseal(page, PLACE);
            let opened = PageLayout::open(page, PLACE, &mut image);
            assert!(image.capacity() <= 2 * IMAGE_SIZE_MAX + 4 * usize::from(u16::MAX));
            let Ok(layout) = opened else { return false };
            let bytes = layout.bytes(page, &image);
            for index in 0..layout.count() {
                let _ = (layout.suffix(bytes, index), layout.value(bytes, index));
            }
            let _ = layout.search(bytes, b"key");
            true
        };
        assert!(try_open(&mut pages[0].clone()));

        for offset in (4..400).chain(PAGE_SIZE - 40..PAGE_SIZE) {
            for byte in [0, 1, 0x7F, 0xFF] {
                let mut page = pages[0].clone();
                page[offset] = byte;
                try_open(&mut page);
            }
        }

        // Lengths of the image and of what is compressed, and counts, that do not belong together.
        for (image_bytes, compressed, count) in [
            (u32::MAX, 100, 10),
            (IMAGE_SIZE_MAX as u32, 100, 10),
            (0, 0, 0),
            (0, 0, 1),
            (16, 4_081, 1),
            (16_368, u16::MAX, 4_092),
            (16_368, 4_080, 4_093),
            (16_368, 4_080, 0),
            (100, 20, 26),
        ] {
            let mut page = pages[0].clone();
            page[6..8].copy_from_slice(&u16::to_le_bytes(count));
            page[8..12].copy_from_slice(&u32::to_le_bytes(image_bytes));
            page[14..16].copy_from_slice(&u16::to_le_bytes(compressed));
            assert!(!try_open(&mut page), "{image_bytes} {compressed} {count}");
        }
        // Codecs that there are not, and the other one.
        let own = pages[0][5];
        assert!(Codec::from_tag(own).is_some());
        for codec in (0..=255).filter(|codec| *codec != own) {
            let mut page = pages[0].clone();
            page[5] = codec;
            assert!(!try_open(&mut page), "codec {codec}");
        }

        // A bomb: a page that is all match.
        let mut bomb = pages[0].clone();
        bomb[16..].fill(0xFF);
        bomb[14..16].copy_from_slice(&4_080_u16.to_le_bytes());
        assert!(!try_open(&mut bomb));
    }
}
