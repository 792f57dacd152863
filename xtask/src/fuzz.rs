//! Coverage-guided fuzzing of the parser.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::{
    apt, run,
    step::{self, cargo, output},
    tools,
};

/// What makes a program tell libFuzzer which branches it takes, without the
/// unstable flags of the compiler.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Ccodegen-units=1 --cfg=fuzzing";

/// Longest frame, with the two bytes before it.
const LONGEST: u32 = 2048;

/// Builds the fuzzer and runs it for so long, from the table of packets and
/// what earlier runs have found.
pub(crate) fn fuzz(workspace: &Path, seconds: u32) -> Result<()> {
    let missing = apt::ensure(&tools::FUZZ)?;
    if !missing.is_empty() {
        bail!("these packages are missing: {}", missing.join(" "));
    }
    run::build_of_tests(workspace, "corpus")?;
    let directory = workspace.join("target/fuzz");
    let (named, found) = (directory.join("named"), directory.join("found"));
    let mut corpus = Command::new(workspace.join("target/release/corpus"));
    step::run("writing the table of packets", corpus.arg(&named))?;
    std::fs::create_dir_all(&found)?;
    // A target, so that build scripts are compiled without the flags.
    let target = host()?;
    let mut build = cargo(workspace);
    build.args(["build", "--quiet", "--release", "--manifest-path", "tests/fuzz/Cargo.toml"]);
    build.args(["--target", &target, "--target-dir"]).arg(&directory);
    build.env("RUSTFLAGS", COVERAGE);
    step::run("building the fuzzer", &mut build)?;
    let mut fuzzer = Command::new(directory.join(target).join("release/limiter-fuzz"));
    fuzzer.arg(format!("-max_total_time={seconds}")).arg(format!("-max_len={LONGEST}"));
    fuzzer.args(["-print_final_stats=1", "-verbosity=0"]);
    fuzzer.arg(format!("-artifact_prefix={}/", directory.display()));
    step::run("fuzzing the parser", fuzzer.arg(&found).arg(&named))
}

/// The target that the compiler compiles for by itself.
fn host() -> Result<String> {
    let text = output(Command::new("rustc").arg("-vV")).context("rustc does not start")?;
    let line = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(line.context("rustc does not say what it compiles for")?.to_owned())
}
