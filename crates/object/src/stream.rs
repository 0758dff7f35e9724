//! Objects read as one stream: ranges of all of them, several in flight, handed on in order.

use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::mpsc;

use crate::bucket::{Bucket, IN_FLIGHT};
use crate::error::Result;

/// Bytes of a range.
const RANGE_BYTES: u64 = 4 << 20;

/// A part of an object that is wanted.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) key: String,
    /// First byte.
    pub(crate) from: u64,
    /// Length of the object.
    pub(crate) bytes: u64,
}

/// A range that was read.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Place of its object among those wanted.
    pub(crate) at: usize,
    pub(crate) bytes: Result<Bytes>,
}

impl Bucket {
    /// Reads objects in their order, and hands on each range. Memory: twice [`IN_FLIGHT`] ranges of
    /// 4 MiB.
    ///
    /// # Errors
    /// Those of `take`; errors of requests are handed on.
    pub(crate) fn stream(
        &self,
        wanted: &[Wanted],
        take: &mut dyn FnMut(Piece) -> Result<()>,
    ) -> Result<()> {
        let mut ranges = Vec::new();
        for (at, object) in wanted.iter().enumerate() {
            let mut from = object.from;
            while from < object.bytes {
                let len = (object.bytes - from).min(RANGE_BYTES);
                ranges.push((at, object.key.clone(), from, len));
                from += len;
            }
        }

        let (pieces, mut received) = mpsc::channel::<Piece>(IN_FLIGHT);
        let bucket = self.clone();
        let reading = self.runtime().spawn(async move {
            let requests = futures_util::stream::iter(ranges).map(|(at, key, from, len)| {
                let read = bucket.get_range(&key, from, len);
                async move { Piece { at, bytes: read.await } }
            });
            let mut answers = std::pin::pin!(requests.buffered(IN_FLIGHT));
            while let Some(piece) = answers.next().await {
                // Nobody waits for more after an error of `take`.
                if pieces.send(piece).await.is_err() {
                    break;
                }
            }
        });

        while let Some(piece) = received.blocking_recv() {
            take(piece)?;
        }
        reading.wait("get")
    }
}
