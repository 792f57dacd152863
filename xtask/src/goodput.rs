//! The measurement of goodput, with the programs that it needs.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

use crate::{
    apt, cache,
    run::{self, Profile},
    step::{self, is_root},
    tools,
};

/// The generator of requests, which Debian does not have: of those it has,
/// none is open-loop and tells percentiles that include connecting.
const OHA: &str = "1.16.0";

/// Builds everything and measures.
pub(crate) fn goodput(workspace: &Path, more: &[String]) -> Result<()> {
    run::build(workspace, Profile::Release)?;
    run::build_of_tests(workspace, "goodput")?;
    let oha = oha()?;
    let mut program = Command::new(workspace.join("target/release/goodput"));
    program.args(more).env("PATH", cache::path_with(&oha)?);
    if !is_root() {
        bail!("it is built; it makes network namespaces: sudo cargo xtask goodput");
    }
    ensure_tools()?;
    step::become_program(&mut program)
}

fn ensure_tools() -> Result<()> {
    let brings_nginx = apt::missing(&tools::GOODPUT).contains(&"nginx");
    let missing = apt::ensure(&tools::of_goodput())?;
    if !missing.is_empty() {
        bail!("these packages are missing: {}", missing.join(" "));
    }
    // Debian starts what it installs, and nobody has asked for that one.
    if brings_nginx && Path::new("/run/systemd/system").exists() {
        let mut stop = Command::new("systemctl");
        step::run("stopping the nginx of the system", stop.args(["disable", "--now", "nginx"]))?;
    }
    Ok(())
}

/// The directory of oha, which is built if it is missing.
fn oha() -> Result<PathBuf> {
    let directory = cache::directory()?.join(format!("oha-{OHA}"));
    let binaries = directory.join("bin");
    if !binaries.join("oha").is_file() {
        step::run(
            &format!("building oha {OHA}: some minutes, once"),
            &mut cache::cargo_install("oha", OHA, &directory)?,
        )?;
    }
    Ok(binaries)
}
