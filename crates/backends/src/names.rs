//! The indexes of a database: their names, checked, and their order.

use terrane_merkle::backend::{Error, INDEXES_MAX, Result, Table, is_index_name};

/// The names of the indexes of a database, in the order they were given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexNames(Vec<String>);

impl IndexNames {
    /// Checks names.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a name that may not be one, one given twice, and too many.
    pub(crate) fn new(back_end: &'static str, names: &[&str]) -> Result<Self> {
        let refuse = |why: String| Error::Unsupported { back_end, option: "indexes".into(), why };
        if names.len() > INDEXES_MAX {
            return Err(refuse(format!("{} of them; at most {INDEXES_MAX}", names.len())));
        }
        for (number, name) in names.iter().enumerate() {
            if !is_index_name(name) {
                return Err(refuse(format!(
                    "{name:?}: take lower-case letters, digits and _, a letter first"
                )));
            }
            if names[..number].contains(name) {
                return Err(refuse(format!("{name:?} is given twice")));
            }
        }
        Ok(Self(names.iter().map(|&name| name.to_owned()).collect()))
    }

    /// The names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// The number of a table: 0 is the main one, the indexes follow.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`].
    pub(crate) fn number(&self, table: Table<'_>) -> Result<usize> {
        match table {
            Table::Main => Ok(0),
            Table::Index(name) => self
                .iter()
                .position(|known| known == name)
                .map(|number| number + 1)
                .ok_or_else(|| Error::UnknownIndex { name: name.to_owned() }),
        }
    }
}
