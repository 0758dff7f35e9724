//! Targets of files that users bring: traces and logs of other programs.

use terrane_bench::report::bench_kvdb;
use terrane_replay::traces::index::Trace;

/// Operations of a trace that are read at most.
const OPERATIONS_MAX: usize = 1 << 12;

/// Any bytes are read as a trace of an index.
pub(crate) fn index_trace(data: &[u8]) {
    let Ok(trace) = Trace::detect(data) else { return };
    let mut was_error = false;
    for op in trace.take(OPERATIONS_MAX) {
        assert!(!was_error, "the first error ends a trace");
        was_error = op.is_err();
    }
}

/// Any text is read as a log of `bench_kvdb`.
pub(crate) fn bench_kvdb_log(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    drop(bench_kvdb::import("log-200M-512MB.txt", &text, Some(512)));
}
