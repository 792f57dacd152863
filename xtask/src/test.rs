//! Every test, in tiers: what needs least comes first.

use std::{path::Path, time::Instant};

use anyhow::{Result, bail};

use crate::{
    setup,
    step::{self, cargo, is_ci, is_root},
};

/// Programs that the tests run, and the Debian packages that have them.
pub(crate) const TOOLS: [(&str, &str); 4] =
    [("hping3", "hping3"), ("ip", "iproute2"), ("iperf3", "iperf3"), ("ping", "iputils-ping")];

/// Runs the tiers.
pub(crate) fn test(workspace: &Path, quick: bool) -> Result<()> {
    let start = Instant::now();
    let toolchain = setup::ensure(workspace)?;
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
        "packet table on the core",
        cargo(workspace).args(["test", "--package", "limiter-tests", "--lib", "--test", "core"]),
    )?;
    step::run(
        "release binaries",
        cargo(workspace).args(["build", "--release", "--package", "limiter-user"]),
    )?;
    let on_the_kernel = on_the_kernel(workspace, quick)?;
    let seconds = start.elapsed().as_secs();
    if on_the_kernel {
        println!("all tiers passed in {seconds} s");
    } else {
        println!("the tiers that need no root passed in {seconds} s; THE OTHERS DID NOT RUN");
    }
    Ok(())
}

/// The tiers that need root; says whether they ran.
fn on_the_kernel(workspace: &Path, quick: bool) -> Result<bool> {
    let mut obstacle = None;
    if !is_root() {
        obstacle = Some("this is not root".to_owned());
    } else {
        let missing = setup::ensure_programs(&TOOLS)?;
        if !missing.is_empty() {
            obstacle = Some(format!("these packages are missing: {}", missing.join(" ")));
        }
    }
    if let Some(obstacle) = obstacle {
        if is_ci() {
            bail!("the tests on the kernel must run here, but {obstacle}");
        }
        eprintln!("==> THE TESTS ON THE KERNEL AND ON TRAFFIC DO NOT RUN: {obstacle}");
        return Ok(false);
    }
    let mut tests = cargo(workspace);
    tests.args(["test", "--release", "--package", "limiter-tests", "--tests"]);
    if quick {
        tests.env("LIMITER_QUICK", "1");
    }
    // One at a time: they measure rates.
    step::run("program, traffic and command line", tests.args(["--", "--test-threads=1"]))?;
    Ok(true)
}
