//! `terrane bench report --html` and `terrane inspect --html`: one file without network, which a
//! browser shows without complaint on a phone and on a desk. The browser's part is skipped where
//! there is none.

use std::process::Command;

use serde_json::Value;

use crate::program::{Answer, Place, call, command, text};
use crate::schema::is_valid;

fn bench(words: &[&str]) -> Answer {
    command().arg("bench").args(words).output().unwrap().into()
}

/// A page of small runs: reads with their windows, the model, the device.
fn page(place: &Place) -> (std::path::PathBuf, Value) {
    let windows = place.path("run.jsonl");
    let run = ["kvget", "run", "--in-memory", "--keys", "5k", "--reads", "2k", "--quiet"];
    let more = ["--memory-budget", "50%", "--json", "--jsonl", text(&windows)];
    bench(&[&run[..], &more].concat()).done();
    let survey = ["disk", "--file-bytes", "1MiB", "--depths", "1,16", "--seconds", "0.01"];
    let dir = place.path("dir");
    let more = ["--appends", "2", "--json", "--dir", text(&dir)];
    let disk = bench(&[&survey[..], &more].concat());
    let disk = place.write("disk.json", disk.stdout.as_bytes());
    let predicted = bench(&["model", "--json"]);
    is_valid("bench-model.json", &predicted.json());
    let model = place.write("model.json", predicted.stdout.as_bytes());
    let store = place.store();
    let mixed = ["mixed", "--store", text(&store), "--keys", "2k", "--ops", "4k", "--json"];
    let mixed = place.write("mixed.json", bench(&mixed).stdout.as_bytes());

    let html = place.path("report.html");
    let files = [text(&windows), text(&disk), text(&model), text(&mixed)];
    let words = [&["report"][..], &files, &["--html", text(&html), "--json"]].concat();
    let report = bench(&words).done();
    is_valid("bench-report.json", &report);
    (html, report)
}

#[test]
fn a_page_has_plots_commands_and_raw_data_and_no_network() {
    let place = Place::new();
    let (html, report) = page(&place);
    assert_eq!(report["reports"], 4);
    let made = std::fs::read_to_string(&html).unwrap();
    for id in ["time", "debt", "size"] {
        let view = made.split(&format!("id=\"{id}\"")).nth(1).unwrap();
        assert!(view.split("</section>").next().unwrap().contains("<svg "), "{id}");
    }
    let text_of = std::fs::read_to_string(&html).unwrap();
    assert_eq!(report["bytes"].as_u64().unwrap(), text_of.len() as u64);
    assert_eq!(text_of.matches("<svg ").count() as u64, report["plots"].as_u64().unwrap());
    assert!(text_of.contains("terrane bench kvget run") || text_of.contains("bench kvget run"));
    // The name space of SVG is a name and fetches nothing.
    let rest = text_of.replace("http://www.w3.org/2000/svg", "");
    for foreign in ["http:", "https:", "src=", "@import", "url("] {
        assert!(!rest.contains(foreign), "{foreign}");
    }
    let data = text_of.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
    let data: Value = serde_json::from_str(data).unwrap();
    assert_eq!(data[0]["report"]["command"], "bench kvget run");
    assert!(!data[0]["windows"].as_array().unwrap().is_empty());

    let other = place.write("other.json", b"{}");
    bench(&["report", text(&other), "--html", text(&html), "--json"]).failed(2);
    bench(&["report", "/nonexistent", "--html", text(&html), "--json"]).failed(3);
    assert_eq!(std::fs::read_to_string(&html).unwrap(), text_of, "left as it was");
}

/// Excess of a page's width over a frame of this width, and its plots, as a browser shows it; and
/// the console. A window has a least width, and a frame has none.
fn shown(browser: &str, place: &Place, html: &str, width: u32) -> Option<(String, String)> {
    let framed = html.replace('&', "&amp;").replace('"', "&quot;");
    let script = "onload = () => { const page = document.getElementById('page').contentDocument; \
                  const root = page.documentElement; \
                  document.title = root.scrollWidth - root.clientWidth + ' ' \
                  + page.querySelectorAll('figure svg').length; }";
    let frame =
        format!("<iframe id=page style='width:{width}px;border:0' srcdoc=\"{framed}\"></iframe>");
    let outer = format!("<!DOCTYPE html><script>{script}</script>{frame}");
    let outer = place.write("outer.html", outer.as_bytes());

    let mut call = Command::new(browser);
    call.args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]);
    call.arg(format!("--user-data-dir={}", place.path("profile").display()));
    call.arg("--dump-dom").arg(format!("file://{}", outer.display()));
    let output = call.output().ok().filter(|output| output.status.success())?;
    let dom = String::from_utf8_lossy(&output.stdout);
    let title = dom.split("<title>").nth(1)?.split('<').next()?.to_owned();
    Some((title, String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// Opens a page in a browser, on a phone and on a desk.
fn is_shown(place: &Place, html: &std::path::Path, plots: &Value) {
    let html = std::fs::read_to_string(html).unwrap();
    for width in [400, 1_400] {
        let browsers = ["chromium", "chromium-browser", "google-chrome"];
        let found = browsers.iter().find_map(|browser| shown(browser, place, &html, width));
        let Some((title, console)) = found else {
            println!("skipped: no chromium");
            return;
        };
        assert!(!console.contains("CONSOLE"), "{console}");
        assert_eq!(title, format!("0 {plots}"), "{width}");
    }
}

#[test]
fn a_browser_shows_the_page_without_complaint() {
    let place = Place::new();
    let (html, report) = page(&place);
    is_shown(&place, &html, &report["plots"]);
}

/// A store with two tables, a snapshot, a version and runs on several levels.
#[test]
fn the_page_of_a_store_has_its_levels_versions_and_snapshots() {
    let place = Place::new();
    let store = place.store();
    let lines: Vec<String> = (0..3_000).map(|key| format!("key {key:04}\tvalue\n")).collect();
    let file = place.write("lines", lines.concat().as_bytes());
    for table in ["accounts", "main"] {
        let words = ["put", "--create", "--table", table, "--input", text(&file)];
        call(&store, &words).done();
    }
    call(&store, &["snapshot", "save", "monday"]).done();
    call(&store, &["version", "retain", "--name", "first"]).done();
    call(&store, &["compact"]).done();
    // A second flush, which a compaction merges with the first one.
    let more = place.write("more", lines.concat().replace("key", "more").as_bytes());
    call(&store, &["put", "--table", "accounts", "--input", text(&more)]).done();
    call(&store, &["compact"]).done();

    let html = place.path("store.html");
    let inspect = |words: &[&str]| -> Answer {
        command().arg("inspect").args(words).arg("--json").output().unwrap().into()
    };
    let report = inspect(&[text(&store), "--html", text(&html)]).done();
    let made = std::fs::read_to_string(&html).unwrap();
    assert_eq!(report["html_bytes"].as_u64().unwrap(), made.len() as u64);
    assert_eq!(made.matches("<svg ").count() as u64, report["plots"].as_u64().unwrap());
    assert_eq!(report["kind"], "store");
    for id in ["facts", "levels", "runs-by-level", "filters", "debt", "memory", "lists", "runs"] {
        assert!(made.contains(&format!("<section id=\"{id}\"")), "{id}");
    }
    for shown in ["monday", "first", "accounts level 1", "main flush"] {
        assert!(made.contains(shown), "{shown}");
    }
    is_shown(&place, &html, &report["plots"]);

    // Of a file there is no page, and what was there stays.
    inspect(&[text(&file), "--html", text(&html)]).failed(2);
    inspect(&["constants", "--html", text(&html)]).failed(2);
    inspect(&[text(&store), "--html", "-"]).failed(2);
    assert_eq!(std::fs::read_to_string(&html).unwrap(), made);
}
