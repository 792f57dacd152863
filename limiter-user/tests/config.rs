//! The configuration: what each bad file is told, word for word.

use std::{fs, path::Path};

use limiter_user::config::{Host, parse};

/// A small machine, so that the files can ask for too much of it.
const HOST: Host = Host { cpus: 2, memory_bytes: Some(1 << 30) };

/// `limiter-user/tests/config/NAME.toml` is told what stands in `NAME.txt`.
#[test]
fn bad_files_are_told_what_is_wrong() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config");
    let mut wrong = Vec::new();
    let mut files = 0;
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        files += 1;
        let text = fs::read_to_string(&path).unwrap();
        let report = match parse(&text, "limiterd.toml", &HOST) {
            Ok((_, warnings)) => warnings,
            Err(report) => report,
        };
        let expected = fs::read_to_string(path.with_extension("txt")).unwrap_or_default();
        let told = report.to_string();
        if told != expected {
            wrong.push(format!("--- {} is told\n{told}--- not\n{expected}", path.display()));
        }
    }
    assert!(files > 0, "there are no files");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
