//! Kinds of the entries of a directory.

/// Kind of an entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, where links are not followed: in listings, and below an
    /// [anchor](crate::disk::disk::Disk::anchor).
    Link,
    /// Anything else: a FIFO, a socket, a device.
    Other,
}

impl EntryKind {
    /// The name used in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Link => "symbolic link",
            Self::Other => "special file",
        }
    }
}
