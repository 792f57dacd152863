//! Every test, in tiers: what needs least comes first.

use std::{path::Path, process::Command, time::Instant};

use anyhow::{Result, bail};

use crate::{
    apt,
    bpf_toolchain::BpfToolchain,
    fuzz,
    run::{self, Profile},
    setup,
    step::{self, cargo, is_ci, is_root},
    tools,
};

/// For how long the parser is fuzzed.
const FUZZ_SECONDS: u32 = 20;

/// Runs the tiers.
pub(crate) fn test(workspace: &Path, quick: bool) -> Result<()> {
    let start = Instant::now();
    let toolchain = setup::ensure(workspace)?;
    setup::ensure_lints(workspace)?;
    let obstacle = obstacle_to_the_kernel()?;
    if let Some(obstacle) = &obstacle
        && is_ci()
    {
        bail!("the tests on the kernel must run here, but {obstacle}");
    }
    without_privileges(workspace, &toolchain)?;
    if obstacle.is_none() {
        on_the_kernel(workspace, quick)?;
    }
    let seconds = start.elapsed().as_secs();
    match obstacle {
        None => println!("all tiers passed in {seconds} s"),
        Some(obstacle) => println!(
            "the tiers that need no root passed in {seconds} s; THE TESTS ON THE KERNEL AND ON \
             TRAFFIC DID NOT RUN: {obstacle}"
        ),
    }
    Ok(())
}

/// Why the tests on the kernel cannot run, after an attempt to mend it.
fn obstacle_to_the_kernel() -> Result<Option<String>> {
    if !is_root() {
        return Ok(Some("they need root".to_owned()));
    }
    let missing = apt::ensure(&tools::of_tests())?;
    Ok((!missing.is_empty()).then(|| format!("packages are missing: {}", missing.join(" "))))
}

fn without_privileges(workspace: &Path, toolchain: &BpfToolchain) -> Result<()> {
    step::run("formatting", cargo(workspace).args(["fmt", "--all", "--check"]))?;
    step::run(
        "lints",
        cargo(workspace)
            .args(["clippy", "--quiet", "--workspace", "--all-targets", "--"])
            .args(["-D", "warnings"]),
    )?;
    // A directory of its own: other flags, so other artifacts.
    step::run(
        "warnings of the BPF crate on its own target",
        toolchain
            .cargo(workspace, "check", std::env::consts::ARCH, &["-Dwarnings"])
            .args(["--quiet", "--target-dir"])
            .arg(workspace.join("target/bpf-check")),
    )?;
    step::run(
        "tests of the crates",
        cargo(workspace)
            .args(["test", "--quiet", "--package", "limiter-common", "--package", "limiter-user"])
            .args(["--package", "xtask"]),
    )?;
    step::run(
        "packets and levels on the core",
        cargo(workspace)
            .args(["test", "--package", "limiter-tests", "--lib"])
            .args(["--test", "core", "--test", "levels"]),
    )?;
    run::build(workspace, Profile::Release)
}

/// The tiers that need root.
fn on_the_kernel(workspace: &Path, quick: bool) -> Result<()> {
    let mut tests = cargo(workspace);
    tests.args(["test", "--release", "--no-fail-fast", "--package", "limiter-tests", "--tests"]);
    if quick {
        tests.env("LIMITER_QUICK", "1");
    }
    // One at a time: they measure rates.
    step::run("program, traffic and command line", tests.args(["--", "--test-threads=1"]))?;
    if !quick {
        fuzz::fuzz(workspace, FUZZ_SECONDS)?;
        // No figure is judged here; it must run.
        let mut bench = Command::new(workspace.join("target/release/bench"));
        step::run("the benchmark, once", bench.args(["--rounds", "1"]))?;
    }
    Ok(())
}
