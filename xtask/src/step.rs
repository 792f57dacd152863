//! Running other programs.

use std::{
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether this is a run of continuous integration.
pub(crate) fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

/// The cargo that runs this, on the workspace, for the host.
pub(crate) fn cargo(workspace: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // A build without the program for the kernel would do, but not for these.
    cargo.current_dir(workspace).env("LIMITER_REQUIRE_BPF", "1");
    cargo
}

/// Runs a command under a heading, its output shown.
pub(crate) fn run(heading: &str, command: &mut Command) -> Result<()> {
    let start = Instant::now();
    eprintln!("==> {heading}");
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    if !status.success() {
        bail!("{heading}: failed ({status})");
    }
    eprintln!("    done in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Becomes another program, so that signals reach it; returns only on failure.
pub(crate) fn become_program(command: &mut Command) -> Result<()> {
    Err(command.exec()).with_context(|| format!("cannot start {}", command.get_program().display()))
}

/// What a command prints, if it succeeds.
pub(crate) fn output(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
