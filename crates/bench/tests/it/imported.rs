//! The published logs of `bench_kvdb`, where somebody has them.
//!
//! Goal: the importer gives the published table to four digits. Method: the folder that
//! `TERRANE_BENCH_KVDB_LOGS` names has the 30 logs; each is compared with its row. The logs have no
//! licence, so they are not shipped, and without the variable the test says that it did nothing.

use std::path::Path;

use terrane_bench::report::bench_kvdb::import;

/// Size of the cache in megabytes, reads per GET and GETs per second, as published.
type Row = (u64, f64, f64);

const PUBLISHED: [(&str, [Row; 10]); 3] = [
    (
        "200M",
        [
            (23, 3.1321, 72_902.77),
            (32, 2.2508, 87_945.33),
            (45, 1.9693, 70_655.40),
            (90, 1.7032, 72_576.84),
            (135, 1.4449, 92_869.48),
            (180, 1.1918, 82_860.34),
            (210, 1.0421, 91_274.19),
            (225, 1.0270, 69_306.79),
            (450, 1.0158, 70_045.67),
            (676, 1.0060, 67_258.09),
        ],
    ),
    (
        "2B",
        [
            (226, 3.0749, 46_053.87),
            (284, 2.1832, 33_753.34),
            (452, 1.9536, 54_193.79),
            (905, 1.6927, 57_681.10),
            (1360, 1.4379, 59_477.43),
            (1810, 1.2028, 61_120.96),
            (2048, 1.1047, 56_767.22),
            (2263, 1.0743, 56_913.25),
            (4526, 1.0422, 57_205.29),
            (6789, 1.0225, 57_587.43),
        ],
    ),
    (
        "20B",
        [
            (2250, 2.8356, 39_799.09),
            (2600, 2.4191, 40_249.22),
            (4500, 1.9559, 42_237.22),
            (9000, 1.7031, 43_882.75),
            (13500, 1.4756, 44_328.60),
            (18000, 1.3525, 44_501.21),
            (21000, 1.3254, 40_749.30),
            (22500, 1.3156, 44_467.17),
            (45000, 1.1584, 41_950.53),
            (68000, 1.0800, 42_800.71),
        ],
    ),
];

#[test]
fn published_logs_give_the_published_table() {
    let Some(folder) = std::env::var_os("TERRANE_BENCH_KVDB_LOGS") else {
        println!("nothing checked: TERRANE_BENCH_KVDB_LOGS names no folder of logs");
        return;
    };

    for (entries, rows) in PUBLISHED {
        for (megabytes, io_per_get, ops_per_s) in rows {
            let name = format!("RadmonRead_{entries}_{megabytes}M.log");
            let text = std::fs::read(Path::new(&folder).join(&name)).unwrap();
            let found = import(&name, &String::from_utf8_lossy(&text), None).unwrap();
            assert!((found.io_per_get - io_per_get).abs() < 1e-9, "{name}: {}", found.io_per_get);
            assert!((found.ops_per_s - ops_per_s).abs() < 1e-9, "{name}: {}", found.ops_per_s);
        }
    }
}
