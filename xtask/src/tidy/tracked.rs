//! Rules on any file of the repository: its size (6), and no text that belongs to one machine (7):
//! paths of home folders and hosts that only some networks know.

use crate::problem::{Problem, Rule};
use crate::workspace::File;

/// Folders for data; their files may be of any size.
const DATA_FOLDERS: [&str; 3] = ["data/", "bench/results/", "docs/report/"];

const FILE_BYTES_MAX: usize = 256 * 1024;

/// First parts of paths that exist on somebody's machine only. Written in halves so that this file
/// does not break its own rule.
const MACHINE_PATHS: [&str; 5] = [
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("/Us", "ers/"),
    concat!("C:\\Us", "ers\\"),
];

/// Endings of host names that no public name server answers for.
const PRIVATE_ENDINGS: [&str; 5] = [".internal", ".intranet", ".corp", ".lan", ".local"];

/// Files that tell cargo where to fetch from, and the hosts they may name.
const FETCHING_FILES: [&str; 5] =
    ["Cargo.toml", "Cargo.lock", "config.toml", "rust-toolchain.toml", "run"];
const PUBLIC_HOSTS: [&str; 3] = ["github.com", "crates.io", "docs.rs"];

/// The breaches of the rules 6 and 7 in one file.
pub(super) fn problems(file: &File) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut report = |line, rule, what, remedy| {
        problems.push(Problem { path: file.path.clone(), line, rule, what, remedy });
    };

    let is_data = DATA_FOLDERS.iter().any(|folder| file.path.starts_with(folder));
    if !is_data && file.bytes.len() > FILE_BYTES_MAX {
        report(
            1,
            Rule::LargeFile,
            format!("{} bytes, and at most {FILE_BYTES_MAX} are allowed", file.bytes.len()),
            "generate it, shrink it, or move it to data/ with a line in data/NOTICE",
        );
    }

    for (number, line) in file.text().unwrap_or_default().lines().enumerate() {
        if let Some(path) = machine_path(line) {
            report(
                number + 1,
                Rule::Machine,
                format!("`{path}` is a path of one machine"),
                "use a relative path, a temporary folder or an argument",
            );
        }

        for host in hosts(line) {
            let is_fetching = FETCHING_FILES.contains(&file.name());
            if is_private(host) || (is_fetching && !PUBLIC_HOSTS.contains(&host)) {
                report(
                    number + 1,
                    Rule::Machine,
                    format!("`{host}` is no public host"),
                    "fetch from crates.io; a mirror belongs into the configuration of the machine",
                );
            }
        }
    }

    problems
}

/// The machine path that starts a path in `line`, if there is one.
fn machine_path(line: &str) -> Option<&'static str> {
    MACHINE_PATHS.into_iter().find(|pattern| {
        line.match_indices(pattern).any(|(at, _)| {
            // Inside a longer path it is a folder like any other.
            let before = line[..at].chars().next_back();
            before.is_none_or(|before| !before.is_alphanumeric() && !"._-}*".contains(before))
        })
    })
}

/// The hosts of the addresses in `line`, without user and port.
fn hosts(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("://").filter_map(|(at, separator)| {
        let scheme_end = &line[..at];
        // Only what is fetched over a network; `file://` names no host.
        if !["http", "https", "git", "ssh"].iter().any(|scheme| scheme_end.ends_with(scheme)) {
            return None;
        }
        let rest = &line[at + separator.len()..];
        let is_host =
            |character: char| character.is_ascii_alphanumeric() || ".-_@:".contains(character);
        let authority = &rest[..rest.find(|character| !is_host(character)).unwrap_or(rest.len())];
        let host = authority.rsplit('@').next().unwrap_or_default();
        host.split(':').next().filter(|host| !host.is_empty())
    })
}

/// Whether `host` means something on some networks only.
fn is_private(host: &str) -> bool {
    let is_loopback = host == "localhost" || host.starts_with("127.");
    let address: Option<Vec<u8>> = host.split('.').map(|part| part.parse().ok()).collect();
    let is_private_address = match address.as_deref() {
        Some([10, _, _, _] | [192, 168, _, _]) => true,
        Some([172, second, _, _]) => (16..32).contains(second),
        _ => false,
    };
    !is_loopback
        && (is_private_address
            || !host.contains('.')
            || PRIVATE_ENDINGS.iter().any(|ending| host.ends_with(ending)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(Rule, usize)> {
        problems(&File::made_up(path, text))
            .iter()
            .map(|problem| (problem.rule, problem.line))
            .collect()
    }

    #[test]
    fn rule_6_refuses_large_files_outside_the_data_folders() {
        let large = "x".repeat(FILE_BYTES_MAX + 1);
        assert_eq!(found("docs/picture.svg", &large), [(Rule::LargeFile, 1)]);
        assert_eq!(found("docs/picture.svg", &large[1..]), []);
        assert_eq!(found("data/blocks.dat", &large), []);
        assert_eq!(found("crates/data/blocks.dat", &large), [(Rule::LargeFile, 1)]);
    }

    #[test]
    fn rule_7_refuses_paths_of_one_machine() {
        for pattern in MACHINE_PATHS {
            assert_eq!(found("a.md", &format!("ok\nin {pattern}somebody")), [(Rule::Machine, 2)]);
            assert_eq!(found("a.sh", &format!("DIR={pattern}x")), [(Rule::Machine, 1)]);
        }
        let inside = format!("see target{}x and ${{DIR}}{}x", MACHINE_PATHS[0], MACHINE_PATHS[1]);
        assert_eq!(found("a.md", &inside), []);
        assert_eq!(found("a.md", "/tmp/terrane-demo and /dev/null"), []);
    }

    #[test]
    fn rule_7_refuses_hosts_of_one_network() {
        let address = |host: &str| format!("see https://{host}/path");
        for host in ["mirror.example.corp", "registry:8080", "10.0.0.7", "me@172.16.0.1:80"] {
            assert_eq!(found("a.md", &address(host)), [(Rule::Machine, 1)], "{host}");
        }
        for host in ["example.com", "localhost:9042", "127.0.0.1:9042", "172.15.0.1"] {
            assert_eq!(found("a.md", &address(host)), [], "{host}");
        }
    }

    #[test]
    fn rule_7_lets_cargo_fetch_from_public_hosts_only() {
        let lock = |host: &str| format!("source = \"registry+https://{host}/index\"");
        assert_eq!(found("Cargo.lock", &lock("github.com")), []);
        assert_eq!(found("Cargo.lock", &lock("crates.example.com")), [(Rule::Machine, 1)]);
        assert_eq!(found(".cargo/config.toml", &lock("mirror.example.com")), [(Rule::Machine, 1)]);
        assert_eq!(found("README.md", &lock("crates.example.com")), []);
    }
}
