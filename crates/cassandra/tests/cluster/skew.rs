//! Clients whose clocks are days ahead and behind.
//!
//! A library that is loaded before the system's moves the wall clock of a child process. If commits
//! or deletions carried the time of their client, those of the slow clock would count for nothing.

use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use terrane_cassandra::Cassandra;
use terrane_kv::{Database, Table};

use crate::setup::{cluster, commit, entries, store_name};

/// Variables of the child: the store, and the number of its commits.
const STORE: &str = "TERRANE_TEST_SKEW_STORE";
const NUMBER: &str = "TERRANE_TEST_SKEW_NUMBER";
/// Seconds by which the wall clock is moved.
const SECONDS: &str = "TERRANE_TEST_SKEW_SECONDS";

const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    const char *moved = getenv("TERRANE_TEST_SKEW_SECONDS");
    if (result == 0 && clock == CLOCK_REALTIME && moved) now->tv_sec += atol(moved);
    return result;
}
"#;

/// Builds the library; `None` where there is no compiler.
fn shim(folder: &Path) -> Option<std::path::PathBuf> {
    let source = folder.join("shim.c");
    let library = folder.join("shim.so");
    std::fs::write(&source, SHIM).unwrap();
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    built.is_ok_and(|status| status.success()).then_some(library)
}

fn seconds_now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

/// The child: writes, replaces and removes, and tells its time.
#[test]
fn child_with_a_wrong_clock() {
    let Ok(store) = std::env::var(STORE) else { return };
    let Some(cluster) = cluster() else { return };
    let number: u8 = std::env::var(NUMBER).unwrap().parse().unwrap();
    let database = Cassandra::open(cluster.options(&store)).unwrap();
    let own = [number];
    commit(&database, &[(b"key", Some(&own)), (b"passing", Some(&own)), (&own, Some(&own))])
        .unwrap();
    let last = [number - 1];
    commit(&database, &[(b"passing", None), (&last, None)]).unwrap();
    database.compact().unwrap();
    database.close().unwrap();
    println!("clock {}", seconds_now());
}

#[test]
fn wrong_clocks_of_clients_play_no_part() {
    let Some(cluster) = cluster() else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = shim(folder.path()) else {
        println!("skipped: there is no C compiler");
        return;
    };
    let store = store_name("skew");
    drop(cluster.open(&store));

    let day = 24 * 3_600_i64;
    for (number, seconds) in (1_u8..).zip([10 * day, -10 * day, 0, 30 * day, -30 * day]) {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["skew::child_with_a_wrong_clock", "--exact", "--nocapture"])
            .env("LD_PRELOAD", &library)
            .env(STORE, &store)
            .env(NUMBER, number.to_string())
            .env(SECONDS, seconds.to_string())
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&child.stdout).into_owned();
        assert!(child.status.success(), "{told}{}", String::from_utf8_lossy(&child.stderr));
        let clock = told.lines().find_map(|line| line.strip_prefix("clock "));
        let clock: i64 = clock.unwrap().parse().unwrap();
        assert!((clock - seconds_now() - seconds).abs() < 3_600, "the clock was not moved");

        // Each child's changes count, whatever the clock of the one before it.
        let database = cluster.open(&store);
        let found = entries(&*database.reader().unwrap(), Table::Main);
        let expected = [(vec![number], vec![number]), (b"key".to_vec(), vec![number])];
        assert_eq!(found, expected, "{seconds} s");
        assert!(database.check().unwrap().is_empty());
    }
}
