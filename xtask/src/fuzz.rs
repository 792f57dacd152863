//! Coverage-guided fuzzing of what is parsed: packets and configurations.

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

/// What is fuzzed, and the longest input: a frame with the two bytes before it,
/// a file.
const TARGETS: [(&str, u32); 2] = [("packets", 2048), ("configuration", 4096)];

/// Builds the fuzzers and runs each for so long, from the table of packets, the
/// files of the tests, and what earlier runs have found.
pub(crate) fn fuzz(workspace: &Path, seconds: u32) -> Result<()> {
    let missing = apt::ensure(&tools::FUZZ)?;
    if !missing.is_empty() {
        bail!("these packages are missing: {}", missing.join(" "));
    }
    run::build_of_tests(workspace, "corpus")?;
    let directory = workspace.join("target/fuzz");
    let seeds = directory.join("named");
    let mut corpus = Command::new(workspace.join("target/release/corpus"));
    step::run("writing the table of packets", corpus.arg(&seeds))?;
    // A target, so that build scripts are compiled without the flags.
    let target = host()?;
    let mut build = cargo(workspace);
    build.args(["build", "--quiet", "--release", "--manifest-path", "tests/fuzz/Cargo.toml"]);
    build.args(["--target", &target, "--target-dir"]).arg(&directory);
    build.env("RUSTFLAGS", COVERAGE);
    step::run("building the fuzzers", &mut build)?;
    for (name, longest) in TARGETS {
        let seeds = match name {
            "packets" => seeds.clone(),
            _ => workspace.join("limiter-user/tests/config"),
        };
        let found = directory.join("found").join(name);
        std::fs::create_dir_all(&found)?;
        let mut fuzzer = Command::new(directory.join(&target).join("release").join(name));
        fuzzer.arg(format!("-max_total_time={seconds}")).arg(format!("-max_len={longest}"));
        fuzzer.args(["-print_final_stats=1", "-verbosity=0"]);
        fuzzer.arg(format!("-artifact_prefix={}/{name}-", directory.display()));
        step::run(&format!("fuzzing: {name}"), fuzzer.arg(&found).arg(&seeds))?;
    }
    Ok(())
}

/// The target that the compiler compiles for by itself.
fn host() -> Result<String> {
    let text = output(Command::new("rustc").arg("-vV")).context("rustc does not start")?;
    let line = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(line.context("rustc does not say what it compiles for")?.to_owned())
}
