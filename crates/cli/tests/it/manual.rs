//! Help, pages of the manual and completions: each sub-command that help lists has all of them.

use std::process::Command;

use crate::program::{Answer, Place, command, text};

fn run(arguments: &[&str]) -> Answer {
    command().args(arguments).output().unwrap().into()
}

/// Names of the sub-commands in a help page.
fn listed(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines.take_while(|line| !line.is_empty()).filter_map(|line| {
        let is_name = line.starts_with("  ") && !line[2..].starts_with(' ');
        line.split_whitespace().next().filter(|_| is_name).map(str::to_owned)
    });
    names.filter(|name| name != "help").collect()
}

/// Calls `visit` with the words and the help of each sub-command.
fn visit(words: &[String], visit_one: &mut dyn FnMut(&[String], &str)) {
    let mut arguments: Vec<&str> = words.iter().map(String::as_str).collect();
    arguments.push("--help");
    let answer = run(&arguments);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    visit_one(words, &answer.stdout);
    for name in listed(&answer.stdout) {
        visit(&[words, &[name]].concat(), visit_one);
    }
}

#[test]
fn every_command_has_a_page_and_examples() {
    let place = Place::new();
    let dir = place.path("man");
    let report = run(&["man", text(&dir), "--json"]).done();
    let pages: Vec<String> = serde_json::from_value(report["pages"].clone()).unwrap();
    assert!(pages.len() > 50, "{pages:?}");

    let mut expected = Vec::new();
    visit(&[], &mut |words, help| {
        assert!(help.contains("\nExample"), "{words:?}");
        let name = [&["terrane".to_owned()], words].concat().join("-");
        let page = std::fs::read_to_string(dir.join(format!("{name}.1"))).unwrap();
        for part in [".TH ", ".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS", ".SH EXTRA", "Example"] {
            assert!(page.contains(part), "{name}: {part}");
        }
        expected.push(format!("{name}.1"));
    });
    expected.sort();
    assert_eq!(pages, expected);

    // Pages that are there are replaced.
    assert!(run(&["man", text(&dir)]).stdout.contains(&format!("{} pages", pages.len())));
    let file = place.write("file", b"");
    assert_ne!(run(&["man", text(&file)]).code, Some(0));
}

#[test]
fn completions_know_every_command_and_option() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = run(&["completions", shell]).stdout;
        for word in ["snapshot", "salvage", "optimize-for", "json-lines", "TERRANE_STORE"] {
            // The variable is in the help texts only, which not every shell gets.
            let is_help = word == "TERRANE_STORE";
            assert!(is_help || script.contains(word), "{shell}: {word}");
        }
        assert_eq!(run(&["completions", shell, "--json"]).done()["shell"], shell);
    }
    assert_eq!(run(&["completions", "tcsh"]).code, Some(2));

    // Where there is a bash, the script is one.
    let script = run(&["completions", "bash"]).stdout;
    if let Ok(checked) = Command::new("bash").args(["-n", "-c", &script]).status() {
        assert!(checked.success());
    }
}
