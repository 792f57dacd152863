//! Writes the table of packets as files, by their names: what a fuzzer starts
//! from.

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use limiter_tests::cases::cases;

/// Writes the table of packets as files.
#[derive(Parser)]
struct Arguments {
    /// Where to; made if absent
    directory: PathBuf,
}

fn main() -> ExitCode {
    let Arguments { directory } = Arguments::parse();
    let write = || -> std::io::Result<usize> {
        std::fs::create_dir_all(&directory)?;
        let cases = cases();
        for (at, case) in cases.iter().enumerate() {
            let word = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
            let name: String = case.name.chars().map(word).collect();
            // Two bytes before the frame: nothing lies beyond what is readable.
            let bytes = [&[0, 0], &case.bytes[..]].concat();
            std::fs::write(directory.join(format!("{at:03}-{name}")), bytes)?;
        }
        Ok(cases.len())
    };
    match write() {
        Ok(packets) => {
            println!("{packets} packets in {}", directory.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("corpus: cannot write to {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}
