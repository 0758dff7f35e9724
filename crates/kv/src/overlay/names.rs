//! Names of the indexes of a database, checked, and their order.

use crate::database::{Error, Result, Table, check_indexes};

/// Names of the indexes of a database, in the order of its opening.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexNames(Vec<String>);

impl IndexNames {
    /// Checks names.
    ///
    /// # Errors
    /// Those of [`check_indexes`].
    pub fn new(back_end: &'static str, names: &[&str]) -> Result<Self> {
        check_indexes(back_end, names)?;
        Ok(Self(names.iter().map(|&name| name.to_owned()).collect()))
    }

    /// The names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// The number of a table: 0 is the main table, the indexes follow.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`].
    pub fn number(&self, table: Table<'_>) -> Result<usize> {
        number(&self.0, table)
    }
}

/// The number of a table: 0 is the main table, the indexes follow.
///
/// # Errors
/// [`Error::UnknownIndex`].
pub fn number(indexes: &[String], table: Table<'_>) -> Result<usize> {
    let Table::Index(name) = table else { return Ok(0) };
    let at = indexes.iter().position(|index| index == name);
    at.map(|at| at + 1).ok_or_else(|| Error::UnknownIndex { name: name.to_owned() })
}
