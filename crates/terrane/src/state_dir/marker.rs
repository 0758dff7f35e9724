//! Marker of a radix store: a text file that names the back-end. `docs/format/radix-marker.md` has
//! the format.
//!
//! Invariant: a marker holds neither a user nor a password.

use std::path::Path;

use terrane_io::checksum::crc32c;

use super::dir::{MARKER, MARKER_NEW, StateDir};
use super::error::{Error, Result};
use crate::back_end::{BackEnd, CassandraAddress, Password, RedisAddress, without_user};

/// First word of a marker.
pub const MARKER_MAGIC: &str = "terrane-radix-store";
/// Version of markers.
pub const MARKER_VERSION: u32 = 1;

/// Content of the marker of a radix store: its back-end, and the address if that is a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// Back-end of the database.
    pub back_end: BackEnd,
    /// Address of the database, if the back-end is Redis.
    pub redis: Option<RedisAddress>,
    /// Address of the database, if the back-end is Cassandra.
    pub cassandra: Option<CassandraAddress>,
}

impl Marker {
    /// Reads the marker of a store.
    ///
    /// # Errors
    /// [`Error::Absent`], [`Error::Unfinished`], [`Error::Corrupt`], [`Error::Disk`].
    pub fn read(dir: &Path) -> Result<Self> {
        Self::read_at(&StateDir::open(dir)?)
    }

    pub(super) fn read_at(dir: &StateDir) -> Result<Self> {
        if let Some(marker) = Self::read_named(dir, MARKER)? {
            return Ok(marker);
        }
        if !dir.has(MARKER_NEW)? {
            return Err(Error::Absent { dir: dir.dir().to_owned() });
        }

        let back_end = Self::begun(dir)?.map(|marker| marker.back_end);
        Err(Error::Unfinished { dir: dir.dir().to_owned(), back_end })
    }

    /// Reads the marker of an interrupted creation, if that marker is whole.
    pub(super) fn begun(dir: &StateDir) -> Result<Option<Self>> {
        match Self::read_named(dir, MARKER_NEW) {
            Err(Error::Corrupt { .. }) => Ok(None),
            marker => marker,
        }
    }

    fn read_named(dir: &StateDir, name: &str) -> Result<Option<Self>> {
        let Some(bytes) = dir.read(name)? else { return Ok(None) };
        let corrupt = |rule: String| Error::Corrupt { path: dir.path(name), rule };
        Self::parse(&bytes).map(Some).map_err(corrupt)
    }

    fn parse(bytes: &[u8]) -> std::result::Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "the marker is not text".to_owned())?;

        // The checksum covers every line before its own, so nothing below meets damaged bytes.
        let body = text.strip_suffix('\n').and_then(|text| text.rfind('\n'));

        let body = &text[..body.map_or(0, |end| end + 1)];
        let checksum = format!("crc32c {:08x}\n", crc32c(body.as_bytes()));
        if text[body.len()..] != checksum {
            return Err("the checksum of the marker is wrong".to_owned());
        }

        let mut lines = body.lines();
        let mut field = |name: &str| {
            let line = lines.next().unwrap_or_default();
            let value = line.strip_prefix(name).and_then(|value| value.strip_prefix(' '));
            value.map(str::to_owned).ok_or_else(|| format!("the marker has no {name}"))
        };

        let version = field(MARKER_MAGIC)?;
        if version != MARKER_VERSION.to_string() {
            return Err(format!(
                "the marker has version {version}; this program reads {MARKER_VERSION}"
            ));
        }

        let name = field("back-end")?;
        let back_end = BackEnd::named(&name)
            .filter(|back_end| *back_end != BackEnd::Memory)
            .ok_or_else(|| format!("the marker names the back-end {name:?}, which is unknown"))?;

        let (redis, cassandra) = match back_end {
            BackEnd::Redis => {
                let prefix = field("prefix")?;
                let mut urls = vec![field("url")?];
                for line in lines.by_ref() {
                    let url = line.strip_prefix("url ");
                    urls.push(
                        url.ok_or_else(|| "the marker has an unknown line".to_owned())?.to_owned(),
                    );
                }
                (Some(RedisAddress { urls, prefix, password: Password::InUrl }), None)
            }
            BackEnd::Cassandra => {
                let store = Some(field("store")?);
                (None, Some(CassandraAddress { url: field("url")?, store }))
            }
            _ => (None, None),
        };

        match lines.next() {
            None => Ok(Self { back_end, redis, cassandra }),
            Some(_) => Err("the marker has an unknown line".to_owned()),
        }
    }

    fn text(&self) -> String {
        let mut text = format!("{MARKER_MAGIC} {MARKER_VERSION}\nback-end {}\n", self.back_end);
        if let Some(RedisAddress { urls, prefix, .. }) = &self.redis {
            let lines = urls.iter().map(|url| format!("url {}\n", without_user(url)));
            text += &lines.fold(format!("prefix {prefix}\n"), |text, line| text + &line);
        }
        if let Some(CassandraAddress { url, store }) = &self.cassandra {
            let store = store.as_deref().unwrap_or_default();
            text = format!("{text}store {store}\nurl {}\n", without_user(url));
        }
        let checksum = crc32c(text.as_bytes());
        text + &format!("crc32c {checksum:08x}\n")
    }

    /// Writes the marker, durably, under the name of an unfinished creation.
    pub(super) fn begin(&self, dir: &StateDir) -> Result<()> {
        dir.write(MARKER_NEW, self.text().as_bytes())?;
        dir.sync()
    }

    /// Renames the marker, durably: the store exists from here on.
    pub(super) fn finish(dir: &StateDir) -> Result<()> {
        // The names of the database must be durable before the marker says that the database
        // exists.
        dir.sync()?;
        dir.rename(MARKER_NEW, MARKER)?;
        dir.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_comes_back_and_no_changed_byte_of_one_is_taken() {
        let redis = RedisAddress {
            urls: vec!["redis://a:1/2".to_owned(), "redis://b".to_owned()],
            prefix: "terrane-00".to_owned(),
            password: Password::InUrl,
        };
        let cassandra = CassandraAddress {
            url: "cassandra://a:9042,b/ledger?dc=east&tls=true".to_owned(),
            store: Some("terrane-00".to_owned()),
        };

        for marker in [
            Marker { back_end: BackEnd::Sqlite, redis: None, cassandra: None },
            Marker { back_end: BackEnd::Redis, redis: Some(redis), cassandra: None },
            Marker { back_end: BackEnd::Cassandra, redis: None, cassandra: Some(cassandra) },
        ] {
            let text = marker.text();
            assert_eq!(Marker::parse(text.as_bytes()), Ok(marker));
            for at in 0..text.len() {
                for bit in 0..8 {
                    let mut bytes = text.clone().into_bytes();
                    bytes[at] ^= 1 << bit;
                    assert!(Marker::parse(&bytes).is_err(), "bit {bit} of byte {at}");
                }
                assert!(Marker::parse(&text.as_bytes()[..at]).is_err(), "cut at {at}");
            }
        }
    }
}
