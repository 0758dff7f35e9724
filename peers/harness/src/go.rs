//! Engines in Go: the program of `peers/go`, one process for the load, one under the limit.
//!
//! The program does the same work and prints its own counters. The limit on memory, the device, the
//! page cache and the files are measured here, as for every engine.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::Deserialize;
use terrane_bench::instruments::host;
use terrane_bench::instruments::limits::MemoryLimit;

use crate::engine::{Error, Result, Root};
use crate::files::{bare_sync_us, disk_bytes, leave_page_cache};
use crate::report::{AboutReport, Figures, Percentiles, Plan};

/// The program's source.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../go");

/// The object that the program prints.
#[derive(Debug, Deserialize)]
struct Report {
    about: AboutReport,
    cannot: Option<String>,
    #[serde(flatten)]
    measured: Option<Measured>,
}

#[derive(Debug, Deserialize)]
struct Measured {
    open_s: f64,
    ops: u64,
    seconds: f64,
    reads_us: Option<Percentiles>,
    writes_us: Option<Percentiles>,
    cpu_s: f64,
    read_bytes: u64,
    write_bytes: u64,
    rss_peak_bytes: u64,
    checked: u64,
    #[serde(default)]
    roots: Vec<(u64, Root)>,
}

/// Builds the program, which is up to date after the first time.
fn program() -> Result<PathBuf> {
    let path = std::env::temp_dir().join("terrane-peers-go");
    let built = Command::new("go")
        .args(["build", "-o"])
        .arg(&path)
        .arg(".")
        .env("CGO_ENABLED", "0")
        .current_dir(SOURCE)
        .output();
    match built {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Error::Cannot("this machine has no Go tool chain"))
        }
        Err(source) => Err(Error::System { what: "run go build".to_owned(), source }),
        Ok(output) if !output.status.success() => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(Error::Options(format!("go build failed: {said}")))
        }
        Ok(_) => Ok(path),
    }
}

fn phase(program: &Path, plan: &Plan, dir: &Path, phase: &str) -> Result<Report> {
    let engine = plan.engine.to_string();
    let output = Command::new(program)
        .args(["-engine", &engine, "-workload", plan.workload.name(), "-phase", phase])
        .args(["-entries", &plan.entries.to_string(), "-memory", &plan.memory_bytes.to_string()])
        .args(["-warm", &plan.warm_s.to_string(), "-seconds", &plan.seconds.to_string()])
        .args(["-seed", &plan.seed.to_string(), "-dir"])
        .arg(dir)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Error::System { what: "start the Go program".to_owned(), source })?;
    let failed = |message: String| Error::Engine { engine: plan.engine.name(), message };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(failed(format!(
            "{}: {}",
            output.status,
            said.lines().next().unwrap_or("it said nothing")
        )));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(format!("no report: {error}")))
}

/// Runs a point of an engine in Go.
///
/// # Errors
/// Those of every engine.
pub fn measure(plan: &Plan, dir: &Path, about: &mut Option<AboutReport>) -> Result<Figures> {
    let workload = plan.workload;
    let program = program()?;
    let begun = Instant::now();
    *about = Some(phase(&program, plan, dir, "load")?.about);
    leave_page_cache(dir)?;
    let load_s = workload.loads().then(|| begun.elapsed().as_secs_f64());
    let bare_sync_us = bare_sync_us(workload, dir)?;

    let limit = MemoryLimit::set(plan.memory_bytes)?;
    let report = phase(&program, plan, dir, "measure");
    let page_cache_peak_bytes = limit.page_cache_peak_bytes();
    let memory_enforced_by = limit.enforced_by().to_owned();
    drop(limit);
    let report = report?;
    let measured = match (report.measured, report.cannot) {
        (Some(measured), None) => measured,
        (_, Some(why)) => return Err(Error::Engine { engine: plan.engine.name(), message: why }),
        (None, None) => return Err(Error::Options("the Go program printed no figures".to_owned())),
    };

    let ops = measured.ops.max(1) as f64;
    let disk_bytes = disk_bytes(dir)?;
    let entry_bytes = workload.entry_bytes();
    Ok(Figures {
        memory_enforced_by,
        durability: workload.durability(),
        load_s,
        open_s: measured.open_s,
        ops: measured.ops,
        ops_per_s: measured.ops as f64 / measured.seconds,
        reads_us: measured.reads_us,
        writes_us: measured.writes_us,
        cpu_us_per_op: measured.cpu_s * 1e6 / ops,
        read_bytes_per_op: measured.read_bytes as f64 / ops,
        write_bytes_per_op: measured.write_bytes as f64 / ops,
        // Warm-up and measured time are one process here, so the device's share is not known.
        device_reads_per_op: None,
        rss_peak_bytes: measured.rss_peak_bytes,
        workload_bytes: workload.own_bytes(plan.entries),
        page_cache_peak_bytes,
        disk_bytes,
        disk_ratio: workload
            .loads()
            .then(|| disk_bytes as f64 / (plan.entries * entry_bytes) as f64),
        checked: measured.checked,
        bare_sync_us,
        roots: measured.roots,
        load_average: host::load_average(),
    })
}
