//! Failures of LMDB and of the system, in terms of a database.

use terrane_kv::{Error, Source};
use terrane_lmdb::{Failure, Kind};

pub(super) const NAME: &str = "lmdb";

pub(super) fn back_end_error(call: &'static str, source: impl Into<Source>) -> Error {
    Error::BackEnd { back_end: NAME, call, source: source.into() }
}

pub(super) fn full(limit: impl Into<String>, source: Option<Source>) -> Error {
    Error::StoreFull { back_end: NAME, limit: limit.into(), source }
}

pub(super) fn error_of(call: &'static str, failure: Failure) -> Error {
    match failure.kind {
        Kind::MapFull | Kind::NoRoom => full("map, disk or quota", Some(failure.into())),
        Kind::ReadersFull => Error::Busy {
            back_end: NAME,
            what: "all slots of readers are taken; give some up or raise readers_max".into(),
            source: Some(failure.into()),
        },
        Kind::OpenAlready => {
            Error::Locked { back_end: NAME, what: "this process has it open already".into() }
        }
        Kind::Corrupted => Error::Corruption {
            back_end: NAME,
            what: "the file breaks LMDB's rules of pages".into(),
            source: Some(failure.into()),
        },
        Kind::Fatal => Error::Poisoned { back_end: NAME },
        _ => back_end_error(call, failure),
    }
}

pub(super) fn closed(call: &'static str) -> Error {
    back_end_error(call, "the database is closed")
}

pub(super) fn busy(what: &str) -> Error {
    Error::Busy { back_end: NAME, what: what.into(), source: None }
}
