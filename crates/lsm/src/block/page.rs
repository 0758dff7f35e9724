//! Key page: the 4 KiB unit of a sorted run, and the frame that all pages of a run share.
//!
//! Invariant: a page is written once and never changed; [`PageLayout::open`] is the only way to
//! read a key page, compressed or not, and what it has accepted can be read without failing.

#![expect(clippy::inline_always, reason = "the call would cost a merge as much as the work")]
#![doc = include_str!("../../../../docs/format/page.md")]

use terrane_io::checksum::{crc32c, crc32c_append};
use terrane_io::key_order::{compare_keys, key_prefix};

use crate::block::codec::Codec;
use crate::corrupt::Corrupt;
use crate::entry::entry::{BLOB_SPAN_SIZE, BlobSpan, EntryRef, Kind};

/// Size of a page, in bytes.
#[doc(alias = "block_size")]
pub const PAGE_SIZE: usize = 4096;

/// Bytes in front of a page's content.
pub(crate) const HEADER_SIZE: usize = 16;

/// Content bytes of a page that is not a key page.
pub(crate) const PAYLOAD_SIZE: usize = PAGE_SIZE - HEADER_SIZE;

/// Longest image of a compressed key page, in bytes: its ends are 16 bits.
pub(crate) const IMAGE_SIZE_MAX: usize = 4 * PAGE_SIZE;

/// Bytes that an entry takes in a key page besides its key, its value and its half byte of kind.
const ENTRY_ENDS_SIZE: usize = 4;

/// Kind of a page. 0 is never valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageKind {
    Key = 1,
    Overflow = 2,
    Filter = 3,
    Index = 4,
    Footer = 5,
    Blob = 6,
    CompressedKey = 7,
}

/// The place of a page, which its checksum covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageAddress {
    /// Identity of the run: a number that no other run has.
    pub(crate) identity: u64,
    /// Number of the page in its file.
    pub(crate) page: u32,
}

fn u16_at(bytes: &[u8], offset: usize) -> usize {
    match bytes.get(offset..offset + 2) {
        Some(&[low, high]) => usize::from(u16::from_le_bytes([low, high])),
        _ => 0,
    }
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    bytes
        .get(offset..offset + 4)
        .and_then(<[u8]>::first_chunk)
        .map_or(0, |b| u32::from_le_bytes(*b))
}

fn page_crc(place: PageAddress, page: &[u8]) -> u32 {
    // Identity and number go into the checksum, so a page in another place or file fails it.
    let mut seed = [0; 12];
    seed[..8].copy_from_slice(&place.identity.to_le_bytes());
    seed[8..].copy_from_slice(&place.page.to_le_bytes());
    crc32c_append(crc32c(&seed), &page[4..])
}

/// Writes the checksum of a page that is otherwise complete.
fn seal(page: &mut [u8], place: PageAddress) {
    assert!(page.len() == PAGE_SIZE);
    let crc = page_crc(place, page);
    page[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Writes the checksum of a page anew, as a hostile writer would.
#[cfg(test)]
pub(crate) fn reseal(page: &mut [u8], place: PageAddress) {
    seal(page, place);
}

/// Checks a page's checksum, whatever its kind.
pub(crate) fn check_crc(page: &[u8], place: PageAddress) -> Result<(), Corrupt> {
    let broken = |rule, expected, found| Corrupt { page: place.page, rule, expected, found };
    if page.len() != PAGE_SIZE {
        return Err(broken("page size", PAGE_SIZE as u64, page.len() as u64));
    }
    let stored = u32_at(page, 0);
    let computed = page_crc(place, page);
    if stored != computed {
        return Err(broken("crc", u64::from(computed), u64::from(stored)));
    }
    Ok(())
}

/// Checks a page's checksum and kind.
pub(crate) fn check(page: &[u8], place: PageAddress, kind: PageKind) -> Result<(), Corrupt> {
    let broken = |rule, expected, found| Corrupt { page: place.page, rule, expected, found };
    check_crc(page, place)?;
    if page[4] != kind as u8 {
        return Err(broken("kind", kind as u64, u64::from(page[4])));
    }
    if page[5] != 0 {
        return Err(broken("flags", 0, u64::from(page[5])));
    }
    Ok(())
}

/// Fills `page` with a page of `kind` whose content is `payload`, zero-padded.
pub(crate) fn encode_payload(
    page: &mut [u8],
    place: PageAddress,
    kind: PageKind,
    position: u32,
    payload: &[u8],
) {
    assert!(payload.len() <= PAYLOAD_SIZE);
    page.fill(0);
    page[4] = kind as u8;
    page[8..12].copy_from_slice(&position.to_le_bytes());
    page[HEADER_SIZE..HEADER_SIZE + payload.len()].copy_from_slice(payload);
    seal(page, place);
}

/// The content of a page that [`encode_payload`] wrote, with its padding.
pub(crate) fn decode_payload(
    page: &[u8],
    place: PageAddress,
    kind: PageKind,
    position: u32,
) -> Result<&[u8], Corrupt> {
    check(page, place, kind)?;
    let found = u32_at(page, 8);
    if found != position {
        return Err(Corrupt {
            page: place.page,
            rule: "position",
            expected: u64::from(position),
            found: u64::from(found),
        });
    }
    Ok(&page[HEADER_SIZE..])
}

/// Length of an entry's value as pages store it: with the place of its blob, if it has one.
#[inline]
pub(crate) fn stored_len(kind: Kind, value_len: usize) -> usize {
    match kind {
        Kind::InsertBlob => value_len + BLOB_SPAN_SIZE,
        Kind::Insert | Kind::Delete | Kind::Upsert | Kind::TooLarge => value_len,
    }
}

/// Divides a stored value into the value and the place of its blob.
///
/// # Errors
/// If it is too short for that.
#[inline]
pub(crate) fn split_value(kind: Kind, stored: &[u8]) -> Option<(&[u8], BlobSpan)> {
    if kind != Kind::InsertBlob {
        return Some((stored, BlobSpan::default()));
    }
    let (value, span) = stored.split_last_chunk::<BLOB_SPAN_SIZE>()?;
    let (offset, len) = span.split_first_chunk::<8>()?;
    let len = u32::from_le_bytes(*len.first_chunk()?);
    Some((value, BlobSpan { offset: u64::from_le_bytes(*offset), len }))
}

/// Bytes of a stored value that follow the value itself.
fn span_bytes(entry: EntryRef<'_>) -> ([u8; BLOB_SPAN_SIZE], usize) {
    let mut bytes = [0; BLOB_SPAN_SIZE];
    bytes[..8].copy_from_slice(&entry.blob.offset.to_le_bytes());
    bytes[8..].copy_from_slice(&entry.blob.len.to_le_bytes());
    (bytes, if entry.kind == Kind::InsertBlob { BLOB_SPAN_SIZE } else { 0 })
}

/// Value bytes of an entry that stands alone in a page, and those left for overflow pages.
pub(crate) fn inline_len(key_len: usize, value_len: usize) -> usize {
    let room = PAGE_SIZE - HEADER_SIZE - ENTRY_ENDS_SIZE - 1 - key_len;
    value_len.min(room)
}

/// Overflow pages that an entry needs beside its key page.
pub(crate) fn overflow_pages(key_len: usize, value_len: usize) -> u32 {
    (value_len - inline_len(key_len, value_len)).div_ceil(PAYLOAD_SIZE) as u32
}

/// How many leading bytes two keys share.
pub(crate) fn shared_prefix_len(a: &[u8], b: &[u8]) -> usize {
    let words = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0);
    let whole = 8 * words.take_while(|(a, b)| a == b).count();
    whole + a[whole..].iter().zip(&b[whole..]).take_while(|(a, b)| a == b).count()
}

/// Copies bytes as short as keys and values mostly are, without the call that copies of any length
/// are.
///
/// # Panics
/// If the lengths differ.
#[inline(always)]
pub(crate) fn copy_short(to: &mut [u8], from: &[u8]) {
    assert!(to.len() == from.len());
    match from.len() {
        32..=64 => copy_ends::<32>(to, from),
        16..=31 => copy_ends::<16>(to, from),
        65..=128 => copy_ends::<64>(to, from),
        8..=15 => copy_ends::<8>(to, from),
        4..=7 => copy_ends::<4>(to, from),
        0..=3 => to.iter_mut().zip(from).for_each(|(to, from)| *to = *from),
        _ => to.copy_from_slice(from),
    }
}

/// Copies `N` to `2 * N` bytes as two pieces, which may overlap.
#[inline]
fn copy_ends<const N: usize>(to: &mut [u8], from: &[u8]) {
    if let (Some(to), Some(from)) = (to.last_chunk_mut::<N>(), from.last_chunk()) {
        *to = *from;
    }
    if let (Some(to), Some(from)) = (to.first_chunk_mut::<N>(), from.first_chunk()) {
        *to = *from;
    }
}

/// Bytes that a page copies at once of a key that is no longer.
const WINDOW: usize = 64;

/// An entry of a page that is being filled.
#[derive(Debug, Clone, Copy)]
struct Added {
    key_end: u32,
    value_end: u16,
    kind: u8,
}

/// Makes a buffer this long, which happens seldom.
#[inline(never)]
fn make_room(bytes: &mut Vec<u8>, len: usize) {
    bytes.resize(len, 0);
}

/// The bits of a key's first bytes that belong to a prefix of this length.
fn front_mask(prefix_len: usize) -> u64 {
    let bits_behind = u64::BITS.saturating_sub(8 * prefix_len as u32);
    u64::MAX.checked_shl(bits_behind).unwrap_or(0)
}

/// Collects the entries of one key page.
#[derive(Debug)]
pub(crate) struct PageBuilder {
    /// Bytes that the page may have: [`PAGE_SIZE`], or more if it will be compressed.
    limit: usize,
    /// Whole keys back to back, and room for more; the shared prefix is cut off when the page is
    /// written.
    keys: Vec<u8>,
    keys_len: usize,
    /// Values back to back in as many bytes as a page has.
    values: Vec<u8>,
    values_len: usize,
    entries: Vec<Added>,
    /// Length of the prefix that all keys so far share.
    prefix_len: usize,
    /// First bytes of the first key as a number, and which of its bits belong to the prefix.
    front: u64,
    front_mask: u64,
}

impl Default for PageBuilder {
    fn default() -> Self {
        Self {
            limit: PAGE_SIZE,
            keys: Vec::new(),
            keys_len: 0,
            values: Vec::new(),
            values_len: 0,
            entries: Vec::new(),
            prefix_len: 0,
            front: 0,
            front_mask: 0,
        }
    }
}

impl PageBuilder {
    /// Whether no entry has been added.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many entries have been added.
    pub(crate) fn count(&self) -> usize {
        self.entries.len()
    }

    /// Sets the bytes that a page may have which will be compressed. Entries that were added stay,
    /// whether they fit or not.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        debug_assert!((PAGE_SIZE..=IMAGE_SIZE_MAX).contains(&limit), "ends are 16 bits");
        self.limit = limit;
        if self.values.len() < limit {
            make_room(&mut self.values, limit);
        }
    }

    /// Whether an entry fits on a page of its own that is not compressed. All others go on in
    /// overflow pages.
    pub(crate) fn fits_alone(entry: EntryRef<'_>) -> bool {
        let stored = stored_len(entry.kind, entry.value.len());
        Self::size(1, 0, entry.key.len(), stored) <= PAGE_SIZE
    }

    /// The key of entry `index`.
    pub(crate) fn key(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.entries[before].key_end);
        &self.keys[start as usize..self.entries[index].key_end as usize]
    }

    /// Where the blob of entry `index` is; `None` if it has none.
    pub(crate) fn blob(&self, index: usize) -> Option<BlobSpan> {
        let Added { value_end, kind, .. } = self.entries[index];
        let stored = &self.values[..usize::from(value_end)];
        let has_blob = kind == Kind::InsertBlob as u8;
        has_blob.then(|| split_value(Kind::InsertBlob, stored)).flatten().map(|(_, blob)| blob)
    }

    /// Length of the prefix that the keys of the first `count` entries share.
    fn prefix_len_of(&self, count: usize) -> usize {
        match count {
            // A lone key keeps its bytes as suffix: nothing is gained by calling all of it prefix.
            0 | 1 => 0,
            _ if count == self.entries.len() => self.prefix_len,
            _ => shared_prefix_len(self.first_key(), self.key(count - 1)),
        }
    }

    /// Size of a page of the first `count` entries. Rises with the count.
    pub(crate) fn size_of_first(&self, count: usize) -> usize {
        let Some(last) = count.checked_sub(1).map(|last| self.entries[last]) else { return 0 };
        let prefix_len = self.prefix_len_of(count);
        Self::size(count, prefix_len, last.key_end as usize, usize::from(last.value_end))
    }

    /// How many of the first entries fit on a page that is not compressed.
    pub(crate) fn count_uncompressed(&self) -> usize {
        let mut low = 0;
        let mut high = self.entries.len();
        while low < high {
            let middle = high - (high - low) / 2;
            if self.size_of_first(middle) <= PAGE_SIZE {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }

    /// Drops the first `count` entries, which stand on a page.
    pub(crate) fn drop_first(&mut self, count: usize) {
        let Some(last) = count.checked_sub(1).map(|last| self.entries[last]) else { return };
        let keys = last.key_end;
        let values = last.value_end;

        self.keys.copy_within(keys as usize..self.keys_len, 0);
        self.values.copy_within(usize::from(values)..self.values_len, 0);
        self.entries.drain(..count);
        for entry in &mut self.entries {
            entry.key_end -= keys;
            entry.value_end -= values;
        }
        self.keys_len -= keys as usize;
        self.values_len -= usize::from(values);

        // The entries that are left may share more than all of them did.
        self.prefix_len = match self.entries.len() {
            0 => 0,
            left => shared_prefix_len(self.first_key(), self.key(left - 1)),
        };
        self.front = key_prefix(self.first_key());
        self.front_mask = front_mask(self.prefix_len);
    }

    /// The last key; `None` if no entry has been added.
    pub(crate) fn last_key(&self) -> Option<&[u8]> {
        let (_, before) = self.entries.split_last()?;
        Some(&self.keys[before.last().map_or(0, |before| before.key_end as usize)..self.keys_len])
    }

    fn first_key(&self) -> &[u8] {
        self.entries.first().map_or(&[], |first| &self.keys[..first.key_end as usize])
    }

    #[inline]
    fn size(count: usize, prefix_len: usize, keys_len: usize, values_len: usize) -> usize {
        HEADER_SIZE
            + count * ENTRY_ENDS_SIZE
            + count.div_ceil(2)
            + prefix_len
            + (keys_len - count * prefix_len)
            + values_len
    }

    /// Length of the prefix that all keys share once `key` is added.
    #[inline(always)]
    fn prefix_len_with(&self, key: &[u8]) -> usize {
        let differs = (key_prefix(key) ^ self.front) & self.front_mask != 0;
        if !differs && self.prefix_len <= size_of::<u64>().min(key.len()) && !self.is_empty() {
            return self.prefix_len;
        }
        self.shorter_prefix_len(key)
    }

    /// The same, by a comparison of all bytes of the prefix.
    #[inline(never)]
    fn shorter_prefix_len(&self, key: &[u8]) -> usize {
        if self.is_empty() {
            return key.len();
        }
        // Keys rise, so what the first and the new one share is shared by all between.
        shared_prefix_len(&self.first_key()[..self.prefix_len], key)
    }

    /// Adds an entry if it fits, and says whether it did. The first entry fits if all of it does.
    #[inline(always)]
    pub(crate) fn push(&mut self, entry: EntryRef<'_>) -> bool {
        let prefix_len = self.prefix_len_with(entry.key);

        let size = Self::size(
            self.entries.len() + 1,
            prefix_len,
            self.keys_len + entry.key.len(),
            self.values_len + stored_len(entry.kind, entry.value.len()),
        );

        if size > self.limit {
            return false;
        }

        // The value comes first: `add_key` notes where both end.
        self.add_value(entry.value);
        if entry.kind == Kind::InsertBlob {
            self.add_value(&span_bytes(entry).0);
        }

        self.add_key(entry.key, entry.kind, prefix_len);
        true
    }

    /// Adds a part of the value whose key follows.
    #[inline(always)]
    fn add_value(&mut self, part: &[u8]) {
        // A builder that is never used takes no memory.
        if self.values.is_empty() {
            make_room(&mut self.values, PAGE_SIZE);
        }
        let end = self.values_len + part.len();
        debug_assert!(end <= self.limit, "the caller has found room");
        copy_short(&mut self.values[self.values_len..end], part);
        self.values_len = end;
    }

    #[inline(always)]
    fn add_key(&mut self, key: &[u8], kind: Kind, prefix_len: usize) {
        let end = self.keys_len + key.len();
        // Room for a page more, so that keys seldom make the vector grow.
        if end > self.keys.len() {
            make_room(&mut self.keys, end + PAGE_SIZE);
        }
        copy_short(&mut self.keys[self.keys_len..end], key);
        self.keys_len = end;
        debug_assert!(prefix_len <= key.len(), "the prefix is part of each key");
        debug_assert!(self.values_len <= self.limit);
        let key_end = end as u32;
        let value_end = self.values_len as u16;
        if prefix_len != self.prefix_len || self.entries.is_empty() {
            self.set_prefix(key, prefix_len);
        }
        self.entries.push(Added { key_end, value_end, kind: kind as u8 });
    }

    /// Notes that all keys share so many bytes with this one.
    #[inline(never)]
    fn set_prefix(&mut self, key: &[u8], prefix_len: usize) {
        debug_assert!(prefix_len <= key.len(), "the prefix is part of each key");
        self.front = key_prefix(key);
        self.front_mask = front_mask(prefix_len);
        self.prefix_len = prefix_len;
    }

    /// Makes this the page of one entry that is too large for a page; the builder must be empty.
    /// Returns the part of the stored value that goes into overflow pages, in two pieces.
    pub(crate) fn push_large<'a>(&mut self, entry: EntryRef<'a>) -> (&'a [u8], Vec<u8>) {
        assert!(self.is_empty());
        let (span, span_len) = span_bytes(entry);
        let inline = inline_len(entry.key.len(), stored_len(entry.kind, entry.value.len()));
        debug_assert!(inline <= entry.value.len() + span_len);
        // The place of the blob is cut off the value, or is itself cut in two.
        let (first, rest) = entry.value.split_at(inline.min(entry.value.len()));
        let (second, span) = span[..span_len].split_at(inline - first.len());
        self.add_value(first);
        self.add_value(second);
        self.add_key(entry.key, entry.kind, 0);
        (rest, span.to_vec())
    }

    /// Writes the page and empties the builder. `value_bytes` is the whole length of the stored
    /// value if the page's only entry goes on in overflow pages, and 0 otherwise.
    pub(crate) fn finish(&mut self, page: &mut [u8], place: PageAddress, value_bytes: u32) {
        self.write_first(self.entries.len(), page, place, value_bytes);
        self.entries.clear();
        (self.keys_len, self.values_len, self.prefix_len) = (0, 0, 0);
    }

    /// Writes a page of the first `count` entries, which stay in the builder.
    #[inline]
    pub(crate) fn write_first(
        &self,
        count: usize,
        page: &mut [u8],
        place: PageAddress,
        value_bytes: u32,
    ) {
        debug_assert_eq!(page.len(), PAGE_SIZE);
        let size = self.fill(count, page, value_bytes);
        // The buffer may hold an earlier page, whose bytes must not reach the file.
        page[size..].fill(0);
        seal(page, place);
    }

    /// Writes the image of a page of the first `count` entries into `image`, in place of what is
    /// there.
    pub(crate) fn image_of_first(&self, count: usize, image: &mut Vec<u8>) {
        let size = self.size_of_first(count);
        debug_assert!(size <= IMAGE_SIZE_MAX, "ends are 16 bits");
        image.resize(size, 0);
        let filled = self.fill(count, image, 0);
        debug_assert_eq!(filled, size);
    }

    /// Writes the header but the checksum, and the first `count` entries; returns their size.
    #[inline]
    fn fill(&self, count: usize, page: &mut [u8], value_bytes: u32) -> usize {
        assert!(count > 0);
        let entries = &self.entries[..count];
        let prefix_len = self.prefix_len_of(count);
        debug_assert!(
            self.size_of_first(count) <= page.len(),
            "each entry was added only if it fits"
        );
        let (header, rest) = page.split_at_mut(HEADER_SIZE);
        header.fill(0);
        header[4] = PageKind::Key as u8;
        header[6..8].copy_from_slice(&(count as u16).to_le_bytes());
        header[8..12].copy_from_slice(&value_bytes.to_le_bytes());
        header[12..14].copy_from_slice(&(prefix_len as u16).to_le_bytes());
        let (key_ends, rest) = rest.split_at_mut(2 * count);
        let (value_ends, rest) = rest.split_at_mut(2 * count);
        let (kinds, rest) = rest.split_at_mut(count.div_ceil(2));
        let (prefix, rest) = rest.split_at_mut(prefix_len);
        prefix.copy_from_slice(&self.keys[..prefix_len]);
        let ends = key_ends.as_chunks_mut().0.iter_mut().zip(value_ends.as_chunks_mut().0);
        let mut at = 0;
        let mut start = prefix_len;

        for ((key_end, value_end), added) in ends.zip(entries) {
            let end = added.key_end as usize;
            let suffix = &self.keys[start..end];
            // Bytes behind a short suffix are written over, so it is copied with them.
            if suffix.len() <= WINDOW
                && let Some(from) = self.keys[start..].first_chunk::<WINDOW>()
                && let Some(to) = rest[at..].first_chunk_mut()
            {
                *to = *from;
            } else {
                copy_short(&mut rest[at..at + suffix.len()], suffix);
            }
            at += suffix.len();
            start = end + prefix_len;
            *key_end = (at as u16).to_le_bytes();
            *value_end = added.value_end.to_le_bytes();
        }

        for (to, pair) in kinds.iter_mut().zip(entries.chunks(2)) {
            *to = pair[0].kind | pair.get(1).map_or(0, |second| second.kind << 4);
        }

        let values_len = entries.last().map_or(0, |last| usize::from(last.value_end));
        rest[at..at + values_len].copy_from_slice(&self.values[..values_len]);
        HEADER_SIZE + ENTRY_ENDS_SIZE * count + count.div_ceil(2) + prefix_len + at + values_len
    }
}

// A compressed key page.

/// Turns the ends at the start of an image's content into lengths, in four planes: low bytes of the
/// key lengths, of the value lengths, then the high bytes of both. Most lengths of a page are
/// alike, while no two ends are, so that a codec finds what to shorten.
fn ends_to_planes(ends: &mut [u8], scratch: &mut Vec<u8>) {
    scratch.clear();
    scratch.extend_from_slice(ends);
    let count = ends.len() / ENTRY_ENDS_SIZE;
    let (low, high) = ends.split_at_mut(2 * count);
    let mut before = 0_u16;
    for (index, end) in scratch.as_chunks::<2>().0.iter().enumerate() {
        // Each of the two columns starts from 0.
        if index == count {
            before = 0;
        }
        let end = u16::from_le_bytes(*end);
        let [low_byte, high_byte] = end.wrapping_sub(before).to_le_bytes();
        (low[index], high[index], before) = (low_byte, high_byte, end);
    }
}

/// The reverse of [`ends_to_planes`]. Sums wrap: ends that fall are refused by who reads them.
fn planes_to_ends(planes: &mut [u8], scratch: &mut [u8]) {
    debug_assert_eq!(planes.len(), scratch.len());
    scratch.copy_from_slice(planes);
    let count = planes.len() / ENTRY_ENDS_SIZE;
    let (low, high) = scratch.split_at(2 * count);
    let (key_ends, value_ends) = planes.split_at_mut(2 * count);
    for (ends, from) in [(key_ends, 0), (value_ends, count)] {
        let bytes = low[from..].iter().zip(&high[from..]);
        let mut sum = 0_u16;
        for (end, (&low, &high)) in ends.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
            sum = sum.wrapping_add(u16::from_le_bytes([low, high]));
            *end = sum.to_le_bytes();
        }
    }
}

/// Makes the content of an image ready for a codec; `scratch` is working memory.
pub(crate) fn prepare_image(image: &mut [u8], scratch: &mut Vec<u8>) {
    let ends = ENTRY_ENDS_SIZE * u16_at(image, 6);
    ends_to_planes(&mut image[HEADER_SIZE..HEADER_SIZE + ends], scratch);
}

/// Writes a compressed key page: `header` begins with that of the image, whose content `compressed`
/// stands for and which had `image_size` bytes with its header.
pub(crate) fn encode_compressed(
    page: &mut [u8],
    place: PageAddress,
    codec: Codec,
    (header, image_size): ([u8; HEADER_SIZE], usize),
    compressed: &[u8],
) {
    assert!(compressed.len() <= PAYLOAD_SIZE && image_size <= IMAGE_SIZE_MAX);
    page.fill(0);
    page[..HEADER_SIZE].copy_from_slice(&header);
    page[4] = PageKind::CompressedKey as u8;
    page[5] = codec as u8;
    page[8..12].copy_from_slice(&((image_size - HEADER_SIZE) as u32).to_le_bytes());
    page[14..16].copy_from_slice(&(compressed.len() as u16).to_le_bytes());
    page[HEADER_SIZE..HEADER_SIZE + compressed.len()].copy_from_slice(compressed);
    seal(page, place);
}

/// Decompresses a page whose checksum is right into `image`, in place of what is there.
fn decompress(page: &[u8], place: PageAddress, image: &mut Vec<u8>) -> Result<(), Corrupt> {
    let broken = |rule, expected: usize, found: usize| Corrupt {
        page: place.page,
        rule,
        expected: expected as u64,
        found: found as u64,
    };

    let newest = Codec::NEWEST as usize;
    let codec = Codec::from_tag(page[5]).ok_or_else(|| broken("codec", newest, page[5].into()))?;
    let count = u16_at(page, 6);
    let content = u32_at(page, 8) as usize;
    let compressed = u16_at(page, 14);
    // Bounded before a byte of memory is asked for, whatever the page says.
    if content > IMAGE_SIZE_MAX - HEADER_SIZE {
        return Err(broken("image_bytes", IMAGE_SIZE_MAX - HEADER_SIZE, content));
    }
    let ends = ENTRY_ENDS_SIZE * count;
    if ends > content {
        return Err(broken("entry_count", content / ENTRY_ENDS_SIZE, count));
    }
    if compressed > PAYLOAD_SIZE {
        return Err(broken("compressed_bytes", PAYLOAD_SIZE, compressed));
    }

    // Behind the image there is room for the lengths while they become ends.
    let size = HEADER_SIZE + content;
    image.resize(size + ends, 0);
    let (image_bytes, scratch) = image.split_at_mut(size);
    let (header, content) = image_bytes.split_at_mut(HEADER_SIZE);
    header.fill(0);
    header[4] = PageKind::Key as u8;
    header[6..8].copy_from_slice(&page[6..8]);
    header[12..14].copy_from_slice(&page[12..14]);
    if !codec.decompress(&page[HEADER_SIZE..HEADER_SIZE + compressed], content) {
        return Err(broken("image_bytes", size - HEADER_SIZE, 0));
    }
    planes_to_ends(&mut content[..ends], scratch);
    image.truncate(size);
    Ok(())
}

/// Where things stand in a key page whose every byte has been checked.
///
/// Invariant: made by [`PageLayout::parse`] only, which establishes that all ends are in order and
/// in the page; so that reading the page it was made from cannot fail.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PageLayout {
    count: u16,
    kinds: u16,
    prefix: u16,
    suffixes: u16,
    values: u16,
    value_bytes: u32,
    /// Whether the page is compressed, so that its entries stand in its image.
    is_compressed: bool,
}

/// Where an entry stands in its key page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryLocation {
    /// First bytes of the whole key, see [`key_prefix`].
    pub(crate) key_prefix: u64,
    pub(crate) kind: Kind,
    suffix: u16,
    suffix_end: u16,
    value: u16,
    value_end: u16,
}

impl EntryLocation {
    /// In no page.
    pub(crate) const NOWHERE: Self = Self {
        key_prefix: 0,
        kind: Kind::Delete,
        suffix: 0,
        suffix_end: 0,
        value: 0,
        value_end: 0,
    };

    /// Returns the rest of the key behind the page's prefix.
    #[inline]
    pub(crate) fn suffix(self, page: &[u8]) -> &[u8] {
        &page[usize::from(self.suffix)..usize::from(self.suffix_end)]
    }

    /// The stored value, as far as it stands in the page.
    #[inline]
    pub(crate) fn stored_value(self, page: &[u8]) -> &[u8] {
        &page[usize::from(self.value)..usize::from(self.value_end)]
    }
}

/// The kind of entry `index` of a page, from the bytes of kinds.
#[inline]
fn kind_of(kinds: &[u8], index: usize) -> Kind {
    let tag = (kinds[index / 2] >> (4 * (index % 2))) & 15;
    Kind::from_tag(tag).expect("checked by parse")
}

/// Name of the codec of a compressed key page; `None` for any other page.
pub(crate) fn codec_of(page: &[u8]) -> Option<&'static str> {
    Codec::from_tag(page[5]).filter(|_| is_compressed(page)).map(Codec::name)
}

/// Whether a page says that it is a compressed key page.
#[inline]
fn is_compressed(page: &[u8]) -> bool {
    page.get(4) == Some(&(PageKind::CompressedKey as u8))
}

impl PageLayout {
    /// Checks a key page, and decompresses it into `image` if it is compressed. Its entries are
    /// read from [`bytes`](Self::bytes) of both.
    ///
    /// Cost: at most [`IMAGE_SIZE_MAX`] bytes of memory and a little, whatever the page says.
    ///
    /// # Errors
    /// [`Corrupt`] for any page that no builder wrote in this place.
    pub(crate) fn open(
        page: &[u8],
        place: PageAddress,
        image: &mut Vec<u8>,
    ) -> Result<Self, Corrupt> {
        if !is_compressed(page) {
            return Self::parse(page, place);
        }
        check_crc(page, place)?;
        Self::decompress(page, place, image)
    }

    /// Opens a page that was checked when it was read, and has been in memory since.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub(crate) fn open_checked(
        page: &[u8],
        place: PageAddress,
        image: &mut Vec<u8>,
    ) -> Result<Self, Corrupt> {
        if is_compressed(page) {
            Self::decompress(page, place, image)
        } else {
            Self::parse_checked(page, place)
        }
    }

    #[inline(never)]
    fn decompress(page: &[u8], place: PageAddress, image: &mut Vec<u8>) -> Result<Self, Corrupt> {
        decompress(page, place, image)?;
        let layout = Self::parse_checked(image, place)?;
        Ok(Self { is_compressed: true, ..layout })
    }

    /// Whether the page was compressed.
    pub(crate) fn is_compressed(self) -> bool {
        self.is_compressed
    }

    /// The bytes that this layout is of: those of the page, or of its image.
    #[inline]
    pub(crate) fn bytes<'a>(self, page: &'a [u8], image: &'a [u8]) -> &'a [u8] {
        if self.is_compressed { image } else { page }
    }

    /// Checks a key page that is not compressed.
    #[inline(never)] // so that `cargo xtask counts` sees it apart
    fn parse(page: &[u8], place: PageAddress) -> Result<Self, Corrupt> {
        check(page, place, PageKind::Key)?;
        Self::parse_checked(page, place)
    }

    /// Parses a page, or an image, whose bytes are as they were written.
    fn parse_checked(page: &[u8], place: PageAddress) -> Result<Self, Corrupt> {
        let broken = |rule, expected: usize, found: usize| Corrupt {
            page: place.page,
            rule,
            expected: expected as u64,
            found: found as u64,
        };

        let count = u16_at(page, 6);
        let prefix_len = u16_at(page, 12);
        let kinds = HEADER_SIZE + ENTRY_ENDS_SIZE * count;
        let prefix = kinds + count.div_ceil(2);

        let suffixes = prefix + prefix_len;
        // No page is without entries, and the prefix must end inside the page.
        if count == 0 || suffixes > page.len() {
            return Err(broken("entry_count", 1, count));
        }

        if u16_at(page, 14) != 0 {
            return Err(broken("reserved", 0, u16_at(page, 14)));
        }

        let ends = |bytes: &[u8]| {
            let ends = bytes.as_chunks::<2>().0;
            let pairs = ends.iter().zip(ends.get(1..).unwrap_or_default());
            // All of them, without a look at each: that goes many at a time.
            let falls = pairs.fold(false, |falls, (one, next)| {
                falls | (u16::from_le_bytes(*one) > u16::from_le_bytes(*next))
            });
            let last = ends.last().map_or(0, |last| usize::from(u16::from_le_bytes(*last)));
            if falls { Err(broken("ends", 1, 0)) } else { Ok(last) }
        };

        let (key_ends, value_ends) = page[HEADER_SIZE..kinds].split_at(2 * count);
        let values = suffixes + ends(key_ends)?;

        let end = values + ends(value_ends)?;
        // Ends never fall, so the last end bounds all of them.
        if end > page.len() {
            return Err(broken("ends", page.len(), end));
        }

        let (pairs, last) = page[kinds..prefix].split_at(count / 2);

        // If the number of entries is odd, the upper half of the last byte must be 0.
        let last = last.first().copied();
        let unknown = |tag: u8| Kind::from_tag(tag).is_none();
        let any_unknown = pairs.iter().fold(last.is_some_and(unknown), |any, pair| {
            any | unknown(pair & 15) | unknown(pair >> 4)
        });

        if any_unknown {
            return Err(broken("entry kind", 1, 0));
        }

        let value_bytes = u32_at(page, 8);
        let layout = Self {
            count: count as u16,
            kinds: kinds as u16,
            prefix: prefix as u16,
            suffixes: suffixes as u16,
            values: values as u16,
            value_bytes,
            is_compressed: false,
        };

        // An entry that goes on in overflow pages stands alone and fills its page.
        if value_bytes != 0 {
            let inline = end - values;
            let wanted = inline_len(values - prefix, value_bytes as usize);
            if count != 1 || inline != wanted || inline == value_bytes as usize {
                return Err(broken("value_bytes", wanted, inline));
            }
        }

        // Only a page with blobs needs a look at each entry.
        let has_blob = |tag: u8| tag == Kind::InsertBlob as u8;
        let blobs_are_whole = |index| layout.try_entry(page, index).is_some();
        let any_blob = page[kinds..prefix]
            .iter()
            .fold(false, |any, &pair| any | has_blob(pair & 15) | has_blob(pair >> 4));

        if any_blob && value_bytes == 0 && !(0..count).all(blobs_are_whole) {
            return Err(broken("place of a blob", BLOB_SPAN_SIZE, 0));
        }

        Ok(layout)
    }

    /// Entries in the page, at least 1.
    pub(crate) fn count(self) -> usize {
        usize::from(self.count)
    }

    /// Whole length of the only entry's value, if it goes on in overflow pages.
    pub(crate) fn large_value_len(self) -> Option<usize> {
        (self.value_bytes != 0).then_some(self.value_bytes as usize)
    }

    /// Returns the prefix that all keys of the page share.
    pub(crate) fn prefix(self, page: &[u8]) -> &[u8] {
        &page[usize::from(self.prefix)..usize::from(self.suffixes)]
    }

    /// Returns the rest of the key of entry `index`, behind the prefix.
    pub(crate) fn suffix(self, page: &[u8], index: usize) -> &[u8] {
        self.slot(page, HEADER_SIZE, self.suffixes, index)
    }

    /// The value of entry `index` and the place of its blob; of an entry that is not large.
    pub(crate) fn value(self, page: &[u8], index: usize) -> (&[u8], BlobSpan) {
        self.try_entry(page, index).expect("checked by parse")
    }

    fn try_entry(self, page: &[u8], index: usize) -> Option<(&[u8], BlobSpan)> {
        split_value(self.kind(page, index), self.stored_value(page, index))
    }

    /// The stored value of entry `index`, as far as it stands in the page.
    pub(crate) fn stored_value(self, page: &[u8], index: usize) -> &[u8] {
        self.slot(page, HEADER_SIZE + 2 * self.count(), self.values, index)
    }

    fn slot(self, page: &[u8], ends: usize, base: u16, index: usize) -> &[u8] {
        debug_assert!(index < self.count());
        let start = if index == 0 { 0 } else { u16_at(page, ends + 2 * (index - 1)) };
        let end = u16_at(page, ends + 2 * index);
        &page[usize::from(base) + start..usize::from(base) + end]
    }

    /// Puts down where all entries stand, for who reads them all. If their keys do not rise,
    /// returns the first that is not above the one before.
    pub(crate) fn entries(self, page: &[u8], entries: &mut Vec<EntryLocation>) -> Option<usize> {
        let ends = page[HEADER_SIZE..usize::from(self.kinds)].as_chunks::<2>().0;
        let (key_ends, value_ends) = ends.split_at(self.count());
        let kinds = &page[usize::from(self.kinds)..usize::from(self.prefix)];
        let tags = kinds.iter().flat_map(|pair| [pair & 15, pair >> 4]);

        let mut suffix = self.suffixes;
        let mut value = self.values;
        let ends = key_ends.iter().zip(value_ends).zip(tags);
        entries.clear();
        entries.extend(ends.map(|((key_end, value_end), tag)| {
            let suffix_end = self.suffixes + u16::from_le_bytes(*key_end);
            let value_end = self.values + u16::from_le_bytes(*value_end);
            let kind = Kind::from_tag(tag).expect("checked by parse");
            let entry = EntryLocation { key_prefix: 0, kind, suffix, suffix_end, value, value_end };
            (suffix, value) = (suffix_end, value_end);
            entry
        }));

        self.note_key_prefixes(page, entries)
    }

    /// Fills in the first bytes of the keys. Returns the first entry whose key is not above the one
    /// before.
    fn note_key_prefixes(self, page: &[u8], entries: &mut [EntryLocation]) -> Option<usize> {
        let prefix = self.prefix(page);
        let front = key_prefix(prefix);
        let front_bits = 8 * prefix.len().min(8) as u32;
        let mut before = 0;
        let mut is_unclear = false;

        for entry in entries.iter_mut() {
            let now = key_prefix(entry.suffix(page));
            entry.key_prefix = front | now.checked_shr(front_bits).unwrap_or(0);
            is_unclear |= now <= before;
            before = now;
        }

        // Nearly always the first bytes decide.
        if !is_unclear {
            return None;
        }
        let pairs = entries.iter().zip(&entries[1..]);
        let rises =
            |(one, next): (&EntryLocation, &EntryLocation)| one.suffix(page) < next.suffix(page);
        pairs.map(rises).position(|rises| !rises).map(|index| index + 1)
    }

    /// The kind of entry `index`.
    pub(crate) fn kind(self, page: &[u8], index: usize) -> Kind {
        kind_of(&page[usize::from(self.kinds)..], index)
    }

    /// Finds `key` among the entries: its index, or where it would stand.
    #[inline(never)] // so that `cargo xtask counts` sees it apart
    pub(crate) fn search(self, page: &[u8], key: &[u8]) -> Result<usize, usize> {
        let prefix = self.prefix(page);
        // A key without the prefix stands before or behind all entries.
        let Some(suffix) = key.strip_prefix(prefix) else {
            return Err(if key < prefix { 0 } else { self.count() });
        };

        let mut low = 0;
        let mut high = self.count();
        while low < high {
            let middle = usize::midpoint(low, high);
            match compare_keys(self.suffix(page, middle), suffix) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }

        Err(low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::entry::KEY_BYTES_MAX;

    const PLACE: PageAddress = PageAddress { identity: 7, page: 3 };

    fn build(entries: &[(Vec<u8>, Kind, Vec<u8>)]) -> Vec<u8> {
        let mut builder = PageBuilder::default();
        for (key, kind, value) in entries {
            assert!(builder.push(EntryRef::plain(key, *kind, value)));
        }
        let mut page = vec![0; PAGE_SIZE];
        builder.finish(&mut page, PLACE, 0);
        page
    }

    fn sample() -> Vec<(Vec<u8>, Kind, Vec<u8>)> {
        (0..30u8)
            .map(|n| {
                let kind = [Kind::Delete, Kind::Insert, Kind::Upsert][usize::from(n % 3)];
                let value = if n % 3 == 0 { vec![] } else { vec![n; usize::from(n)] };
                ([b"shared".as_slice(), &[n, n / 2]].concat(), kind, value)
            })
            .collect()
    }

    #[test]
    fn every_entry_is_read_back_and_found() {
        let entries = sample();
        let page = build(&entries);
        let layout = PageLayout::parse(&page, PLACE).unwrap();
        assert_eq!(layout.count(), entries.len());
        assert_eq!(layout.prefix(&page), b"shared");

        for (index, (key, kind, value)) in entries.iter().enumerate() {
            assert_eq!(layout.search(&page, key), Ok(index));
            assert_eq!([layout.prefix(&page), layout.suffix(&page, index)].concat(), *key);
            assert_eq!(layout.kind(&page, index), *kind);
            assert_eq!(layout.value(&page, index), (value.as_slice(), BlobSpan::default()));
        }

        assert_eq!(layout.search(&page, b"share"), Err(0));
        assert_eq!(layout.search(&page, b"shared"), Err(0));
        assert_eq!(layout.search(&page, b"sharee"), Err(30));
        assert_eq!(layout.search(&page, b"shared\x03\x02"), Err(4));
    }

    #[test]
    fn the_entries_of_a_page_stand_where_each_alone_is_found() {
        // Keys of which the first eight bytes decide, and keys that go on with zeros.
        let zeros = |n: usize| (vec![0; n], Kind::Insert, vec![n as u8]);
        for list in [sample(), vec![zeros(1)], (0..12).map(zeros).collect()] {
            let page = build(&list);
            let layout = PageLayout::parse(&page, PLACE).unwrap();
            let mut entries = vec![EntryLocation::NOWHERE; 2];
            assert_eq!(layout.entries(&page, &mut entries), None);
            assert_eq!(entries.len(), list.len());
            for (index, (key, kind, _)) in list.iter().enumerate() {
                let entry = entries[index];
                assert_eq!((entry.kind, entry.key_prefix), (*kind, key_prefix(key)));
                assert_eq!(entry.suffix(&page), layout.suffix(&page, index));
                assert_eq!(entry.stored_value(&page), layout.stored_value(&page, index));
            }
        }
    }

    #[test]
    fn the_first_key_that_does_not_rise_is_told() {
        let list: Vec<_> = (0..9u8).map(|n| (vec![n], Kind::Delete, vec![])).collect();
        let page = build(&list);
        let layout = PageLayout::parse(&page, PLACE).unwrap();
        for (from, to) in [(1, 0), (4, 3), (8, 7), (8, 0)] {
            let mut page = page.clone();
            page[usize::from(layout.suffixes) + from] = to;
            assert_eq!(layout.entries(&page, &mut Vec::new()), Some(from));
        }
    }

    #[test]
    fn a_flip_of_any_bit_and_any_other_place_are_refused() {
        let page = build(&sample());
        for bit in 0..PAGE_SIZE * 8 {
            let mut damaged = page.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(PageLayout::parse(&damaged, PLACE).is_err(), "bit {bit}");
        }
        assert!(PageLayout::parse(&page, PageAddress { page: 4, ..PLACE }).is_err());
        assert!(PageLayout::parse(&page, PageAddress { identity: 8, ..PLACE }).is_err());
        assert!(PageLayout::parse(&page[..4095], PLACE).is_err());
    }

    /// Content that no builder writes, under a right checksum: refused, or read without a panic.
    #[test]
    fn sealed_nonsense_never_panics() {
        let page = build(&sample());
        for offset in 4..256 {
            for value in [0, 1, 0x7F, 0xFF] {
                let mut damaged = page.clone();
                damaged[offset] = value;
                seal(&mut damaged, PLACE);
                if let Ok(layout) = PageLayout::parse(&damaged, PLACE) {
                    for index in 0..layout.count() {
                        let _ = (layout.suffix(&damaged, index), layout.value(&damaged, index));
                    }
                    let _ = layout.search(&damaged, b"shared\x03");
                }
            }
        }
    }

    #[test]
    fn forty_two_utxo_entries_fit_when_two_bytes_are_shared() {
        let fit = |shared: usize| {
            let mut builder = PageBuilder::default();
            (0..100u8)
                .take_while(|&n| {
                    let mut key = [0; 34];
                    key[shared] = n + 1;
                    builder.push(EntryRef::plain(&key, Kind::Insert, &[n; 60]))
                })
                .count()
        };

        assert_eq!(fit(2), 42);
        assert_eq!(fit(0), 41);
    }

    #[test]
    fn large_values_leave_the_rest_to_overflow_pages() {
        const KEY: usize = 100;
        let key = [1; KEY];
        let blob = BlobSpan { offset: 0x0102_0304_0506_0708, len: 0x090A_0B0C };

        // 3975 bytes fit beside a key of 100; the place of a blob may be cut off, or in two.
        for (kind, len) in [
            (Kind::Insert, 4000),
            (Kind::Insert, 4096),
            (Kind::Upsert, 5000),
            (Kind::Insert, 100_000),
            (Kind::InsertBlob, 3970),
            (Kind::InsertBlob, 3975),
            (Kind::InsertBlob, 3976),
            (Kind::InsertBlob, 100_000),
        ] {
            let value: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let mut builder = PageBuilder::default();
            let entry = EntryRef { key: &key, kind, value: &value, blob };
            assert!(!builder.push(entry));
            let (rest, span) = builder.push_large(entry);
            let stored = stored_len(kind, len);
            let over = rest.len() + span.len();
            assert_eq!(over.div_ceil(PAYLOAD_SIZE), overflow_pages(KEY, stored) as usize);
            let mut page = vec![0; PAGE_SIZE];
            builder.finish(&mut page, PLACE, stored as u32);
            let layout = PageLayout::parse(&page, PLACE).unwrap();
            assert_eq!(layout.large_value_len(), Some(stored));
            let whole = [layout.stored_value(&page, 0), rest, &span].concat();
            let (read, place) = split_value(layout.kind(&page, 0), &whole).unwrap();
            assert_eq!(read, value, "{kind:?} of {len} bytes");
            assert_eq!(place, if kind == Kind::InsertBlob { blob } else { BlobSpan::default() });
        }

        assert!(overflow_pages(KEY_BYTES_MAX, 0) == 0);
    }

    /// A large value fills its page, and something of it is left for overflow pages.
    #[test]
    fn a_length_of_a_large_value_that_its_page_contradicts_is_refused() {
        let rule_of = |len: usize, said: u32, keys: u8| {
            let entries: Vec<_> =
                (0..keys).map(|n| (vec![n], Kind::Insert, vec![9; len])).collect();
            let mut page = build(&entries);
            page[8..12].copy_from_slice(&said.to_le_bytes());
            seal(&mut page, PLACE);
            PageLayout::parse(&page, PLACE).err().map(|broken| broken.rule)
        };

        let room = inline_len(1, usize::MAX);
        assert_eq!(rule_of(room, room as u32 + 1, 1), None, "one byte in an overflow page");
        for (len, said) in [(room, room), (room - 1, room + 1), (100, 100), (100, 5000), (100, 1)] {
            assert_eq!(rule_of(len, said as u32, 1), Some("value_bytes"), "{len}, {said}");
        }
        assert_eq!(rule_of(100, 5000, 2), Some("value_bytes"));
    }

    #[test]
    fn the_first_entries_of_a_builder_take_what_a_page_of_them_takes() {
        // The more keys, the less they share: 6 bytes, then 1, then none.
        let mut entries = sample();
        entries.push((b"t1".to_vec(), Kind::Insert, vec![1; 100]));
        entries[..15].iter_mut().for_each(|(key, ..)| key.insert(0, b's'));
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        let mut whole = PageBuilder::default();
        for (key, kind, value) in &entries {
            assert!(whole.push(EntryRef::plain(key, *kind, value)));
        }

        let mut first = PageBuilder::default();
        for (index, (key, kind, value)) in entries.iter().enumerate() {
            assert_eq!(whole.key(index), key);
            assert!(first.push(EntryRef::plain(key, *kind, value)));
            assert_eq!(whole.size_of_first(index + 1), first.size_of_first(first.count()));
            assert_eq!(whole.prefix_len_of(index + 1), first.prefix_len_of(first.count()));
        }
        assert_eq!([2, 16, 31].map(|count| whole.prefix_len_of(count)), [6, 1, 0]);
    }

    #[test]
    fn the_place_of_a_blob_stands_behind_the_value() {
        let mut builder = PageBuilder::default();
        let blob = BlobSpan { offset: 1 << 40, len: 7 };
        assert!(builder.push(EntryRef { key: b"a", kind: Kind::InsertBlob, value: b"v", blob }));
        assert!(builder.push(EntryRef::plain(b"b", Kind::Insert, b"")));
        let mut page = vec![0; PAGE_SIZE];
        builder.finish(&mut page, PLACE, 0);
        let layout = PageLayout::parse(&page, PLACE).unwrap();
        assert_eq!(layout.value(&page, 0), (b"v".as_slice(), blob));
        assert_eq!(layout.value(&page, 1), (b"".as_slice(), BlobSpan::default()));

        // An entry that says it has a blob but has no room for its place.
        page[16 + 8] |= (Kind::InsertBlob as u8) << 4;
        page[16 + 8] &= !((Kind::Insert as u8) << 4);
        seal(&mut page, PLACE);
        assert_eq!(PageLayout::parse(&page, PLACE).unwrap_err().rule, "place of a blob");
    }
}
