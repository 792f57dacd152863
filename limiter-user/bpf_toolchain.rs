//! The file in which the set-up step records the BPF compiler that it chose,
//! shared by the step that writes it and the build script that reads it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// Name of the file, at the top of the workspace.
pub(crate) const FILE: &str = ".bpf-toolchain.toml";

/// A compiler that makes BPF objects, and its linker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BpfToolchain {
    /// What it is, for messages.
    pub(crate) description: String,
    /// Its cargo.
    pub(crate) cargo: PathBuf,
    /// Its rustc.
    pub(crate) rustc: PathBuf,
    /// A bpf-linker of the same LLVM major version.
    pub(crate) linker: PathBuf,
    /// Whether it is a stable compiler that has to be told to allow unstable
    /// options.
    pub(crate) bootstrap: bool,
    /// The LLVM major version of both.
    pub(crate) llvm: u32,
}

impl BpfToolchain {
    /// The recorded choice, if there is one and its programs still exist.
    ///
    /// # Errors
    /// The file is there and cannot be read or understood.
    pub(crate) fn read(workspace: &Path) -> Result<Option<Self>> {
        let path = workspace.join(FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let chosen: Self = toml::from_str(&text)
            .with_context(|| format!("{} is damaged; remove it", path.display()))?;
        let there = [&chosen.cargo, &chosen.rustc, &chosen.linker].iter().all(|path| path.exists());
        Ok(there.then_some(chosen))
    }
}
