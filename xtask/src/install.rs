//! Putting the binaries where the system finds them.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{
    run::{self, Profile},
    step::output,
};

const BINARIES: [&str; 2] = ["limiterd", "limiterctl"];
/// Shell, and where its completions go below the prefix.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/limiterctl"),
    ("zsh", "share/zsh/site-functions/_limiterctl"),
    ("fish", "share/fish/vendor_completions.d/limiterctl.fish"),
];

/// Builds and installs below `prefix`.
pub(crate) fn install(workspace: &Path, prefix: &Path) -> Result<()> {
    run::build(workspace, Profile::Release)?;
    let built = workspace.join("target/release");
    for binary in BINARIES {
        let bytes = fs::read(built.join(binary))?;
        write(&prefix.join("bin").join(binary), &bytes, 0o755)?;
    }
    for (shell, place) in COMPLETIONS {
        let script = output(Command::new(built.join("limiterctl")).args(["completions", shell]))
            .with_context(|| format!("limiterctl has no completions for {shell}"))?;
        write(&prefix.join(place), script.as_bytes(), 0o644)?;
    }
    let prefix = prefix.display();
    println!("installed below {prefix}; remove it with: cargo xtask uninstall --prefix {prefix}");
    Ok(())
}

/// Removes what [`install`] has put below `prefix`.
pub(crate) fn uninstall(prefix: &Path) -> Result<()> {
    for path in files(prefix) {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => {}
        }
    }
    println!("removed from {}", prefix.display());
    Ok(())
}

fn files(prefix: &Path) -> Vec<PathBuf> {
    let binaries = BINARIES.iter().map(|binary| prefix.join("bin").join(binary));
    binaries.chain(COMPLETIONS.iter().map(|(_, place)| prefix.join(place))).collect()
}

/// Writes beside the place and renames, so that a running binary is replaced.
fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let directory = path.parent().context("a file below the prefix")?;
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let beside = path.with_extension("new");
    let written = fs::write(&beside, bytes)
        .and_then(|()| fs::set_permissions(&beside, fs::Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&beside, path));
    written.with_context(|| format!("cannot write {} (run as root?)", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_removed() {
        let prefix = tempfile::tempdir().unwrap();
        for path in files(prefix.path()) {
            write(&path, b"x", 0o755).unwrap();
        }
        uninstall(prefix.path()).unwrap();
        assert!(files(prefix.path()).iter().all(|path| !path.exists()));
        uninstall(prefix.path()).unwrap();
    }
}
