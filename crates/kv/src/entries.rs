//! Entries of a cursor as a double-ended iterator.
//!
//! A back-end has cursors that step and seek. This iterator reads a table from both ends with one
//! cursor: it remembers the last key of each end, and seeks where the ends alternate.

use crate::database::{Cursor, Entry, Result};

/// End of a table that an iterator read last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Front,
    Back,
}

/// The entries after a cursor, a double-ended iterator of `Result<Entry>`: what
/// `Box<dyn Cursor>` becomes in a `for` loop.
///
/// The iterator gives an error once and ends. The two ends meet, and no entry comes twice.
///
/// Cost: that of [`Cursor::next`] and [`Cursor::prev`]; a seek and a step more where the ends
/// alternate.
///
/// ```
/// use terrane_kv::{Database, Memory, Result, Table};
///
/// let database = Memory::new(&[])?;
/// let mut writer = database.writer()?;
/// writer.put(Table::Main, b"a", b"1")?;
/// writer.put(Table::Main, b"b", b"2")?;
/// writer.commit()?;
///
/// let reader = database.reader()?;
/// for entry in reader.cursor(Table::Main)? {
///     let (key, value) = entry?;
///     println!("{key:?} {value:?}");
/// }
/// let back: Vec<_> = reader.cursor(Table::Main)?.into_iter().rev().collect::<Result<_>>()?;
/// assert_eq!(back[0].0, b"b");
/// # Ok::<(), terrane_kv::Error>(())
/// ```
pub struct Entries<'a> {
    cursor: Box<dyn Cursor + 'a>,
    /// A key at the front, and whether its entry was given; none before the first read.
    front: Option<(Vec<u8>, bool)>,
    /// The last key that was given at the back.
    back: Option<Vec<u8>>,
    /// End at which the cursor stands.
    end: End,
    is_done: bool,
}

impl std::fmt::Debug for Entries<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { front, back, end, is_done, .. } = self;
        f.debug_struct("Entries")
            .field("front", front)
            .field("back", back)
            .field("end", end)
            .field("is_done", is_done)
            .finish_non_exhaustive()
    }
}

impl Entries<'_> {
    fn read(&mut self) -> Result<Option<Entry>> {
        // The back has moved the cursor, so it returns to where the front was.
        if self.end == End::Back
            && let Some((key, is_given)) = &self.front
        {
            self.cursor.seek(key)?;
            if *is_given {
                self.cursor.next()?;
            }
        }
        self.end = End::Front;

        let entry = self.cursor.next()?;
        let entry = entry.filter(|(key, _)| self.back.as_ref().is_none_or(|back| key < back));
        self.front = entry.as_ref().map(|(key, _)| (key.clone(), true));
        Ok(entry)
    }

    fn read_back(&mut self) -> Result<Option<Entry>> {
        if self.front.is_none() {
            // The only way to learn where the cursor stands.
            let Some((key, _)) = self.cursor.next()? else { return Ok(None) };
            self.front = Some((key, false));
        }
        // The front has moved the cursor, so it returns to where the back was.
        if self.end == End::Front {
            match &self.back {
                Some(key) => self.cursor.seek(key)?,
                None => self.cursor.seek_last()?,
            }
        }
        self.end = End::Back;

        let entry = self.cursor.prev()?;
        let entry = entry.filter(|(key, _)| match &self.front {
            Some((front, is_given)) => key > front || (key == front && !is_given),
            None => false,
        });
        self.back = entry.as_ref().map(|(key, _)| key.clone());
        Ok(entry)
    }

    /// Ends the iterator after an error, and where the ends meet.
    fn give(&mut self, entry: Result<Option<Entry>>) -> Option<Result<Entry>> {
        self.is_done = !matches!(entry, Ok(Some(_)));
        entry.transpose()
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let entry = self.read();
        self.give(entry)
    }
}

impl DoubleEndedIterator for Entries<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let entry = self.read_back();
        self.give(entry)
    }
}

impl<'a> IntoIterator for Box<dyn Cursor + 'a> {
    type Item = Result<Entry>;
    type IntoIter = Entries<'a>;

    fn into_iter(self) -> Entries<'a> {
        Entries { cursor: self, front: None, back: None, end: End::Front, is_done: false }
    }
}
