//! Packages of Debian and Ubuntu.

use std::{process::Command, sync::Once};

use anyhow::Result;

use crate::step::{self, is_root, output};

/// Whether this process may install packages.
pub(crate) fn is_usable() -> bool {
    is_root() && which::which("apt-get").is_ok()
}

/// The version of a package that would be installed.
pub(crate) fn candidate(package: &str) -> Option<String> {
    let candidate = || {
        let policy = output(Command::new("apt-cache").args(["policy", package]))?;
        candidate_in(&policy)
    };
    // A fresh machine may have no lists yet.
    candidate().or_else(|| {
        update();
        candidate()
    })
}

fn candidate_in(policy: &str) -> Option<String> {
    let line = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate:"))?;
    Some(line.trim().to_owned()).filter(|version| version != "(none)")
}

/// Reads the lists of packages anew, once.
pub(crate) fn update() {
    static UPDATED: Once = Once::new();
    UPDATED.call_once(|| {
        // A source that does not answer must not hide the others.
        if let Err(error) = step::run("package lists", apt_get().args(["--quiet", "update"])) {
            eprintln!("    {error:#}; going on with the lists that are there");
        }
    });
}

/// Installs packages; removes none to make room.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    update();
    step::run(
        &format!("installing {}", packages.join(" ")),
        apt_get()
            .args(["--quiet", "--quiet", "--yes", "--no-remove", "--no-install-recommends"])
            .arg("install")
            .args(packages),
    )
}

fn apt_get() -> Command {
    let mut apt = Command::new("apt-get");
    apt.env("DEBIAN_FRONTEND", "noninteractive").args(["-o", "DPkg::Lock::Timeout=120"]);
    apt
}

/// Packages of which a program is missing, from pairs of program and package.
pub(crate) fn missing<'a>(programs: &[(&str, &'a str)]) -> Vec<&'a str> {
    let absent = programs.iter().filter(|(program, _)| which::which(program).is_err());
    absent.map(|(_, package)| *package).collect()
}

/// Installs the packages of missing programs, if that is possible, and returns
/// those that are missing still.
pub(crate) fn ensure<'a>(programs: &[(&str, &'a str)]) -> Result<Vec<&'a str>> {
    let packages = missing(programs);
    if packages.is_empty() || !is_usable() {
        return Ok(packages);
    }
    install(&packages)?;
    Ok(missing(programs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_without_candidate_is_none() {
        let policy = "rustc-web:\n  Installed: (none)\n  Candidate: 1.96.0+dfsg1\n  Version table:";
        assert_eq!(candidate_in(policy).as_deref(), Some("1.96.0+dfsg1"));
        assert_eq!(candidate_in("x:\n  Installed: (none)\n  Candidate: (none)\n"), None);
        assert_eq!(candidate_in(""), None);
    }

    #[test]
    fn only_packages_of_absent_programs_are_missing() {
        let programs = [("sh", "dash"), ("no-such-program", "no-such-package")];
        assert_eq!(missing(&programs), ["no-such-package"]);
    }
}
