//! Building, and running what was built.

use std::{fs, path::Path, process::Command};

use anyhow::{Result, bail};

use crate::{
    apt, setup,
    step::{self, cargo, is_root},
    tools,
};

/// How binaries are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    Debug,
    Release,
}

/// Builds the two binaries.
pub(crate) fn build(workspace: &Path, profile: Profile) -> Result<()> {
    setup::ensure(workspace)?;
    let mut build = cargo(workspace);
    build.args(["build", "--package", "limiter-user"]);
    if profile == Profile::Release {
        build.arg("--release");
    }
    step::run("building limiterd and limiterctl", &mut build)
}

/// Runs limiterd on an interface, or the playground.
pub(crate) fn run(workspace: &Path, iface: Option<&str>, more: &[String]) -> Result<()> {
    build(workspace, Profile::Release)?;
    let release = workspace.join("target/release");
    let mut program;
    if let Some(iface) = iface {
        program = Command::new(release.join("limiterd"));
        program.args(["--iface", iface]);
    } else {
        build_of_tests(workspace, "playground")?;
        program = Command::new(release.join("playground"));
    }
    program.args(more);
    if !is_root() {
        bail!("it is built; it needs root to run: sudo {}", in_words(&program));
    }
    if iface.is_some() {
        mount_bpf_file_system()?;
    } else {
        let missing = apt::ensure(&tools::IP)?;
        if !missing.is_empty() {
            bail!("the playground needs these packages: {}", missing.join(" "));
        }
    }
    step::become_program(&mut program)
}

/// Runs the benchmark.
pub(crate) fn bench(workspace: &Path, more: &[String]) -> Result<()> {
    setup::ensure(workspace)?;
    if is_root() && !more.iter().any(|argument| argument == "--alone") {
        let missing = apt::ensure(&tools::of_benchmark())?;
        if !missing.is_empty() {
            bail!(
                "packages are missing: {}; to measure limiterd only: cargo xtask bench -- --alone",
                missing.join(" ")
            );
        }
    }
    build_of_tests(workspace, "bench")?;
    let mut program = Command::new(workspace.join("target/release/bench"));
    program.args(more);
    if !is_root() {
        bail!("it is built; it loads programs into the kernel: sudo {}", in_words(&program));
    }
    step::become_program(&mut program)
}

/// Takes the pictures.
pub(crate) fn pictures(workspace: &Path) -> Result<()> {
    build(workspace, Profile::Release)?;
    build_of_tests(workspace, "pictures")?;
    let mut program = Command::new(workspace.join("target/release/pictures"));
    program.current_dir(workspace);
    if !is_root() {
        bail!("it is built; it makes network namespaces: sudo cargo xtask pictures");
    }
    let missing = apt::ensure(&tools::of_pictures())?;
    if !missing.is_empty() {
        bail!("these packages are missing: {}", missing.join(" "));
    }
    step::become_program(&mut program)
}

/// Builds a binary of the tests.
pub(crate) fn build_of_tests(workspace: &Path, binary: &str) -> Result<()> {
    let arguments = ["build", "--release", "--package", "limiter-tests", "--bin", binary];
    step::run(&format!("building {binary}"), cargo(workspace).args(arguments))
}

fn in_words(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Whether a BPF file system is where limiterd looks for it.
pub(crate) fn has_bpf_file_system() -> bool {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    is_mounted(&mounts)
}

fn is_mounted(mounts: &str) -> bool {
    mounts.lines().any(|line| {
        let mut fields = line.split(' ').skip(1);
        (fields.next(), fields.next()) == (Some("/sys/fs/bpf"), Some("bpf"))
    })
}

fn mount_bpf_file_system() -> Result<()> {
    if has_bpf_file_system() {
        return Ok(());
    }
    step::run(
        "mounting the BPF file system at /sys/fs/bpf",
        Command::new("mount").args(["-t", "bpf", "bpf", "/sys/fs/bpf"]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bpf_file_system_at_its_usual_place_counts() {
        assert!(is_mounted("proc /proc proc rw 0 0\nnone /sys/fs/bpf bpf rw,mode=700 0 0\n"));
        assert!(!is_mounted("tmpfs /sys/fs/bpf tmpfs rw 0 0\n"));
        assert!(!is_mounted("bpf /mnt bpf rw 0 0\n"));
    }
}
