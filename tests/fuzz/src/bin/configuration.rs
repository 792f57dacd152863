//! Configurations that coverage chooses: whatever the text, it is a
//! configuration that can be written and read again, or a report of errors
//! that have their places in it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use limiter_user::config::{Config, Host, diff, edit, parse};

const HOST: Host = Host { cpus: 2, memory_bytes: Some(4 << 30) };
const FILE: &str = "limiterd.toml";

fuzz_target!(|text: &str| {
    match parse(text, FILE, &HOST) {
        Ok((config, warnings)) => {
            assert!(!warnings.has_errors());
            let written = config.to_toml();
            let again = read(&written);
            assert_eq!(again, config, "{written}");
            assert!(diff(&config, &again).is_empty());
            assert_eq!(edit(text, &config).expect("the same file"), text);
            // To another file and back.
            let other = edit(text, &Config::default());
            if let Ok(other) = other {
                assert_eq!(read(&other), Config::default(), "{other}");
            }
        }
        Err(report) => {
            assert!(report.has_errors());
            let lines = u32::try_from(text.lines().count()).expect("few lines");
            for diagnostic in &report.diagnostics {
                assert!(diagnostic.line >= 1 && diagnostic.line <= lines + 1, "{report}");
                assert!(diagnostic.column >= 1 && !diagnostic.message.is_empty(), "{report}");
            }
            assert!(!report.to_string().is_empty());
        }
    }
});

fn read(text: &str) -> Config {
    match parse(text, FILE, &HOST) {
        Ok((config, _)) => config,
        Err(report) => panic!("{report}\n{text}"),
    }
}
