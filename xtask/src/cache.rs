//! Programs that are built once, for every checkout.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

/// Where they are; outside of the checkout, so that the next one does not
/// build them again.
pub(crate) fn directory() -> Result<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = cache.or_else(home).context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(cache.join("limiterd"))
}

/// The command that builds one from the registry, and puts it below a
/// directory.
pub(crate) fn cargo_install(package: &str, version: &str, directory: &Path) -> Result<Command> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["install", "--quiet", package, "--locked", "--version", version, "--root"]);
    // cargo would advise to add the directory to the path.
    cargo.arg(directory).env("PATH", path_with(&directory.join("bin"))?);
    Ok(cargo)
}

/// The path of programs, with one more directory.
pub(crate) fn path_with(directory: &Path) -> Result<std::ffi::OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).chain([directory.to_owned()]);
    env::join_paths(directories).context("PATH is damaged")
}
