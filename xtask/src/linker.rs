//! bpf-linker: finding one for a compiler, and building one.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result, anyhow};

use crate::{
    apt, cache,
    compiler::major_minor,
    step::{self, output},
};

/// What is built, and the least that is taken: older ones lack options that
/// this build uses.
const VERSION: &str = "0.13.0";

/// A bpf-linker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Linker {
    pub(crate) path: PathBuf,
    /// Its LLVM major version.
    pub(crate) llvm: u32,
}

/// The one on the path, and those that were built here earlier.
pub(crate) fn all() -> Vec<Linker> {
    let built = cache::directory().ok().and_then(|cache| std::fs::read_dir(cache).ok());
    let built = built.into_iter().flatten().flatten();
    let built = built.map(|directory| directory.path().join("bin/bpf-linker"));
    which::which("bpf-linker").into_iter().chain(built).filter_map(inspect).collect()
}

fn inspect(path: PathBuf) -> Option<Linker> {
    let version = output(Command::new(&path).arg("--version"))?;
    if major_minor(version.split_whitespace().nth(1)?) < major_minor(VERSION) {
        return None;
    }
    // It does not tell its LLVM version, but hands options on to LLVM, which
    // prints its own and ends the process.
    let null = "/dev/null";
    let text = output(Command::new(&path).args(["--llvm-args=--version", "--output", null, null]))?;
    Some(Linker { llvm: llvm_version(&text)?, path })
}

/// The major version in what LLVM prints of itself.
fn llvm_version(text: &str) -> Option<u32> {
    let (_, version) = text.split_once("LLVM version ")?;
    major_minor(version).map(|(major, _)| major)
}

fn package(llvm: u32) -> String {
    format!("llvm-{llvm}-dev")
}

/// Where LLVM of this major version is installed with its headers.
fn llvm_prefix(major: u32) -> Option<PathBuf> {
    let prefix = PathBuf::from(format!("/usr/lib/llvm-{major}"));
    prefix.join("include/llvm").exists().then_some(prefix)
}

/// Whether a linker of this LLVM major version can be built.
pub(crate) fn can_be_built(llvm: u32) -> bool {
    llvm_prefix(llvm).is_some() || (apt::is_usable() && apt::candidate(&package(llvm)).is_some())
}

/// The commands by which a user gets a linker of this LLVM major version.
pub(crate) fn mend(llvm: u32) -> String {
    format!(
        "install {} and run: LLVM_PREFIX=/usr/lib/llvm-{llvm} cargo install bpf-linker --locked \
         --version {VERSION} --no-default-features --features llvm-{llvm}",
        package(llvm)
    )
}

/// Builds a linker of this LLVM major version, and installs LLVM first if it is
/// missing.
pub(crate) fn build(llvm: u32) -> Result<PathBuf> {
    if llvm_prefix(llvm).is_none() && apt::is_usable() {
        apt::install(&[&package(llvm)])?;
    }
    let prefix = llvm_prefix(llvm)
        .ok_or_else(|| anyhow!("there is no bpf-linker for LLVM {llvm}; {}", mend(llvm)))?;
    let directory = cache::directory()?.join(format!("bpf-linker-{VERSION}-llvm{llvm}"));
    let features = format!("llvm-{llvm}");
    step::run(
        &format!("building bpf-linker {VERSION} for LLVM {llvm}: some minutes, once"),
        cache::cargo_install("bpf-linker", VERSION, &directory)?
            .args(["--no-default-features", "--features", &features])
            .env("LLVM_PREFIX", prefix),
    )?;
    let built = inspect(directory.join("bin/bpf-linker"));
    let built = built.context("the bpf-linker that was built does not run")?;
    Ok(built.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llvm_version_is_read_as_distributions_and_upstream_print_it() {
        assert_eq!(llvm_version("Debian LLVM version 22.1.8\n  Optimized build.\n"), Some(22));
        assert_eq!(llvm_version("LLVM (http://llvm.org/):\n  LLVM version 9.0.1\n"), Some(9));
        assert_eq!(llvm_version("bpf-linker 0.13.0"), None);
    }

    #[test]
    fn what_is_no_linker_is_not_taken() {
        assert_eq!(inspect("/bin/true".into()), None);
        assert_eq!(inspect("/no/such/file".into()), None);
    }
}
