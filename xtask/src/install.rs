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
    step::{self, output},
};

const BINARIES: [&str; 2] = ["limiterd", "limiterctl"];
/// Shell, and where its completions go below the prefix.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/limiterctl"),
    ("zsh", "share/zsh/site-functions/_limiterctl"),
    ("fish", "share/fish/vendor_completions.d/limiterctl.fish"),
];

/// Where the manual pages go below the prefix.
const MANUAL_1: &str = "share/man/man1";
const MANUAL_8: &str = "share/man/man8/limiterd.8";

/// What systemd reads: the file in the repository, and where it goes below the
/// prefix.
const SYSTEMD: [(&str, &str); 3] = [
    ("limiterd.service", "lib/systemd/system/limiterd.service"),
    ("limiterd.sysusers", "lib/sysusers.d/limiterd.conf"),
    ("limiterd.tmpfiles", "lib/tmpfiles.d/limiterd.conf"),
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
    // Pages of commands that there are no more must not stay.
    remove(&manual_pages(prefix))?;
    let pages = prefix.join(MANUAL_1);
    step::run(
        "manual pages",
        Command::new(built.join("limiterctl")).args(["man", "--to"]).arg(&pages),
    )?;
    let page = output(Command::new(built.join("limiterd")).arg("--print-manual"))
        .context("limiterd has no manual page")?;
    write(&prefix.join(MANUAL_8), page.as_bytes(), 0o644)?;
    install_units(workspace, prefix)?;
    let prefix = prefix.display();
    println!("installed below {prefix}; remove it with: cargo xtask uninstall --prefix {prefix}");
    println!("to run it under systemd:");
    println!("  systemd-sysusers {prefix}/lib/sysusers.d/limiterd.conf");
    println!("  systemd-tmpfiles --create {prefix}/lib/tmpfiles.d/limiterd.conf");
    println!("  limiterd --print-default-config > /etc/limiterd/limiterd.toml   # name interfaces");
    println!("  systemctl daemon-reload && systemctl enable --now limiterd");
    Ok(())
}

/// Installs what systemd reads, with the place of the binaries in it.
fn install_units(workspace: &Path, prefix: &Path) -> Result<()> {
    for (file, place) in SYSTEMD {
        let source = workspace.join("contrib/systemd").join(file);
        let text = fs::read_to_string(&source)
            .with_context(|| format!("cannot read {}", source.display()))?;
        let text = text.replace("@PREFIX@", &prefix.to_string_lossy());
        write(&prefix.join(place), text.as_bytes(), 0o644)?;
    }
    Ok(())
}

/// Removes what [`install`] has put below `prefix`.
pub(crate) fn uninstall(prefix: &Path) -> Result<()> {
    remove(&files(prefix))?;
    println!("removed from {}", prefix.display());
    println!(
        "if it ran: limiterd --detach takes the protection off; /etc/limiterd, /var/lib/limiterd \
         and the user limiterd stay"
    );
    Ok(())
}

fn remove(files: &[PathBuf]) -> Result<()> {
    for path in files {
        match fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

fn files(prefix: &Path) -> Vec<PathBuf> {
    let binaries = BINARIES.iter().map(|binary| prefix.join("bin").join(binary));
    let places = COMPLETIONS.iter().chain(&SYSTEMD).map(|(_, place)| *place);
    let places = places.chain([MANUAL_8]).map(|place| prefix.join(place));
    binaries.chain(places).chain(manual_pages(prefix)).collect()
}

/// The manual pages of limiterctl that are there: one for each command.
fn manual_pages(prefix: &Path) -> Vec<PathBuf> {
    let pages = fs::read_dir(prefix.join(MANUAL_1)).into_iter().flatten().flatten();
    let is_own = |name: &str| {
        let command = name.strip_prefix("limiterctl").and_then(|rest| rest.strip_suffix(".1"));
        command.is_some_and(|command| command.is_empty() || command.starts_with('-'))
    };
    let pages = pages.filter(|page| page.file_name().to_str().is_some_and(is_own));
    pages.map(|page| page.path()).collect()
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

    /// What `systemd-analyze security` may say at the most, in tenths: 0 is safe,
    /// 100 is not.
    const MOST_EXPOSURE: u32 = 17;

    /// The unit is understood, and as closed as the README says.
    #[test]
    fn the_unit_is_valid_and_closed() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let prefix = tempfile::tempdir().unwrap();
        // What it starts must be there.
        for binary in BINARIES {
            write(&prefix.path().join("bin").join(binary), b"#!/bin/sh\n", 0o755).unwrap();
        }
        install_units(workspace, prefix.path()).unwrap();
        let unit = prefix.path().join(SYSTEMD[0].1);
        let analyze = |arguments: &[&str]| {
            let mut command = Command::new("systemd-analyze");
            let output = command.args(arguments).arg(&unit).output();
            let output = output.expect("systemd-analyze, of the package systemd");
            let text = [output.stdout, output.stderr].concat();
            (output.status.success(), String::from_utf8_lossy(&text).into_owned())
        };
        let (is_valid, text) = analyze(&["verify", "--man=no"]);
        assert!(is_valid && text.is_empty(), "{text}");
        let threshold = format!("--threshold={MOST_EXPOSURE}");
        let (is_closed, text) = analyze(&["security", "--offline=true", "--no-pager", &threshold]);
        assert!(is_closed, "{text}");
        let users = fs::read_to_string(prefix.path().join(SYSTEMD[1].1)).unwrap();
        assert!(users.contains("u limiterd"), "{users}");
    }

    #[test]
    fn what_is_written_is_removed() {
        let prefix = tempfile::tempdir().unwrap();
        let foreign = prefix.path().join(MANUAL_1).join("limiterctlx.1");
        write(&foreign, b"x", 0o644).unwrap();
        for command in ["", "-ban", "-ban-add"] {
            let page = prefix.path().join(MANUAL_1).join(format!("limiterctl{command}.1"));
            write(&page, b"x", 0o644).unwrap();
        }
        assert_eq!(manual_pages(prefix.path()).len(), 3);
        let written = files(prefix.path());
        for path in &written {
            write(path, b"x", 0o755).unwrap();
        }
        uninstall(prefix.path()).unwrap();
        assert!(written.iter().all(|path| !path.exists()) && foreign.exists());
        uninstall(prefix.path()).unwrap();
    }
}
