//! The README's own commands and examples.

use std::process::Output;

use limiter_tests::host::{Host, binary};
use limiter_user::config::{Host as Machine, parse};

const README: &str = include_str!("../../README.md");

/// The text of a section, up to the next of its rank.
fn section(title: &str) -> &'static str {
    let start = README.find(&format!("\n## {title}\n")).expect("the section");
    let text = &README[start + 1..];
    text.find("\n## ").map_or(text, |end| &text[..end])
}

/// The blocks of code of that language.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("\n```{language}\n");
    let starts = text.match_indices(&fence).map(|(at, fence)| &text[at + fence.len()..]);
    starts.map(|rest| rest.split("\n```").next().unwrap_or_default()).collect()
}

#[test]
fn examples_of_configurations_are_valid() {
    let machine = Machine { cpus: 2, memory_bytes: Some(4 << 30) };
    let examples = blocks(README, "toml");
    assert!(!examples.is_empty());
    for example in examples {
        let result = parse(example, "README.md", &machine);
        let (_, report) = result.unwrap_or_else(|report| panic!("{report}\n{example}"));
        assert!(report.diagnostics.is_empty(), "{report}");
    }
    // And what a bad one is answered.
    let bad = "[[policy]]\nname = \"a\"\nrat = \"100/s\"\n";
    let report = parse(bad, "limiterd.toml", &machine).expect_err("an error");
    let told = report.to_string();
    let first = told.lines().take(5).collect::<Vec<_>>().join("\n");
    assert!(README.contains(&first), "the README does not show:\n{first}");
}

/// Runs the section's commands as one script, each of which must succeed.
fn run(host: &Host, title: &str, setup: &str) -> Output {
    let blocks = blocks(section(title), "sh");
    assert!(blocks.len() > 5, "{title} has {} blocks", blocks.len());
    let lines = blocks.join("\n");
    // Whoever types is slower than a daemon starts.
    let ready =
        "for _ in $(seq 100); do limiterctl status >/dev/null 2>&1 && break; sleep 0.1; done";
    let gone = "for _ in $(seq 100); do jobs %% >/dev/null 2>&1 || break; sleep 0.1; done";
    let mut script = String::from(
        "set -eu\nsudo() { \"$@\"; }\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n",
    );
    script += setup;
    for line in lines.lines() {
        script += &format!("echo \"## $(cat <<'EOF'\n{line}\nEOF\n)\"\n{line}\n");
        if line.ends_with('&') {
            script += &format!("{ready}\n");
        }
        if line.ends_with("detach") {
            script += &format!("{gone}\n");
        }
    }
    let path = binary("limiterd").parent().expect("a directory").display().to_string();
    let system = std::env::var("PATH").unwrap_or_default();
    let mut command = host.command("bash");
    command.env("PATH", format!("{path}:{system}")).current_dir("/run");
    command.args(["-c", &script]).output().expect("bash")
}

#[test]
fn ten_minutes_run_as_written() {
    let (host, other) = (Host::new(), Host::new());
    host.connect("eth0", &other, "eth0");
    let output = run(&host, "Ten minutes with limiterd", "cd \"$(mktemp -d /run/tour.XXXX)\"\n");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}\n{log}");
    let after = |command: &str| {
        let rest = text.split_once(&format!("## {command}")).expect("the command").1;
        rest.split("\n## ").next().unwrap_or_default().to_owned()
    };
    for (command, words) in [
        ("sudo limiterctl status", &["ok", "observing", "eth0"][..]),
        ("sudo limiterctl explain 198.51.100.7", &["tcp-syn", "pass"]),
        ("sudo limiterctl config diff", &["policy tcp-syn: rate", "50/s", "20/s"]),
        ("sudo limiterctl config apply", &["config confirm"]),
        ("sudo limiterctl explain 203.0.113.9", &["banned"]),
        ("sudo limiterctl ban list", &["203.0.113.0/24", "scan"]),
        ("sudo limiterctl config save", &["limiterd.toml"]),
    ] {
        let answer = after(command);
        assert!(words.iter().all(|word| answer.contains(word)), "{command}: {answer}");
    }
    let last = text.rsplit("## sudo limiterctl explain 203.0.113.9").next().unwrap_or_default();
    let last = last.split("\n## ").next().unwrap_or_default();
    assert!(!last.contains("banned"), "the ban has not ended: {last}");
    assert!(text.trim_end().ends_with("detached from eth0"), "{text}");
}
