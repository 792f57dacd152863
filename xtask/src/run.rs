//! Building, and running what was built.

use std::{path::Path, process::Command};

use anyhow::{Result, bail};

use crate::{
    setup,
    step::{self, cargo, is_root},
    test::TOOLS,
};

/// Builds the two binaries.
pub(crate) fn build(workspace: &Path) -> Result<()> {
    setup::ensure(workspace)?;
    step::run(
        "building limiterd and limiterctl",
        cargo(workspace).args(["build", "--release", "--package", "limiter-user"]),
    )
}

/// Runs limiterd on an interface, or the playground.
pub(crate) fn run(workspace: &Path, iface: Option<&str>, more: &[String]) -> Result<()> {
    if !is_root() {
        bail!(
            "this needs root: build with cargo xtask build, then run as root: {}",
            if iface.is_some() {
                "target/release/limiterd --iface NAME"
            } else {
                "cargo xtask run"
            }
        );
    }
    build(workspace)?;
    match iface {
        Some(iface) => {
            mount_bpf_file_system()?;
            let limiterd = workspace.join("target/release/limiterd");
            let mut limiterd = Command::new(limiterd);
            step::run("limiterd (Ctrl-C ends it)", limiterd.args(["--iface", iface]).args(more))
        }
        None => {
            require(&["ip"])?;
            build_tests(workspace, "playground")?;
            let playground = workspace.join("target/release/playground");
            step::run("playground", Command::new(playground).args(more))
        }
    }
}

/// Runs the benchmark.
pub(crate) fn bench(workspace: &Path, more: &[String]) -> Result<()> {
    if !is_root() {
        bail!("the benchmark loads programs into the kernel and needs root");
    }
    setup::ensure(workspace)?;
    build_tests(workspace, "bench")?;
    step::run("benchmark", Command::new(workspace.join("target/release/bench")).args(more))
}

fn build_tests(workspace: &Path, binary: &str) -> Result<()> {
    let arguments = ["build", "--release", "--package", "limiter-tests", "--bin", binary];
    step::run(&format!("building the {binary}"), cargo(workspace).args(arguments))
}

/// Installs programs of the tests that are missing, if that is possible.
fn require(programs: &[&str]) -> Result<()> {
    let wanted: Vec<_> =
        TOOLS.iter().filter(|(program, _)| programs.contains(program)).copied().collect();
    let missing = setup::ensure_programs(&wanted)?;
    if !missing.is_empty() {
        bail!("these packages are missing: {}", missing.join(" "));
    }
    Ok(())
}

fn mount_bpf_file_system() -> Result<()> {
    let mounts = std::fs::read_to_string("/proc/mounts")?;
    if mounts.lines().any(|line| line.contains(" /sys/fs/bpf bpf ")) {
        return Ok(());
    }
    step::run(
        "mounting the BPF file system at /sys/fs/bpf",
        Command::new("mount").args(["-t", "bpf", "bpf", "/sys/fs/bpf"]),
    )
}
