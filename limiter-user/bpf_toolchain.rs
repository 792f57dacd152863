//! The BPF compiler that the set-up step chose, and how it is called; shared by
//! the step that records it and the build script that uses it.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// Name of the record, at the top of the workspace.
pub(crate) const FILE: &str = ".bpf-toolchain.toml";
/// The target of this machine's byte order.
pub(crate) const TARGET: &str =
    if cfg!(target_endian = "big") { "bpfeb-unknown-none" } else { "bpfel-unknown-none" };

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
    /// A bpf-linker that takes what the compiler makes.
    pub(crate) linker: PathBuf,
    /// Whether it is a stable compiler that has to be told to allow unstable
    /// options.
    pub(crate) bootstrap: bool,
    /// The LLVM major version of the compiler.
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

    fn sysroot(&self) -> &Path {
        self.rustc.ancestors().nth(2).unwrap_or(Path::new("/"))
    }

    /// A cargo command on the BPF crate, for a host of architecture `arch`.
    pub(crate) fn cargo(
        &self,
        workspace: &Path,
        command: &str,
        arch: &str,
        more: &[&str],
    ) -> Command {
        let home = env::var("CARGO_HOME")
            .or_else(|_| env::var("HOME").map(|home| home + "/.cargo"))
            .unwrap_or_default();
        let mut flags = vec![
            format!("--cfg=bpf_target_arch=\"{arch}\""),
            "-Cdebuginfo=2".into(),
            // 32-bit registers and real atomics, since Linux 5.12.
            "-Ctarget-cpu=v3".into(),
            format!("-Clinker={}", self.linker.display()),
            "-Clink-arg=--btf".into(),
            // Paths of this machine are not for the object: it is the same from
            // every checkout. The last that fits counts.
            format!("--remap-path-prefix={}=rust", self.sysroot().display()),
            format!("--remap-path-prefix={home}=cargo"),
            format!("--remap-path-prefix={}=limiterd", workspace.display()),
        ];
        if self.llvm >= 22 {
            // x86-64 and arm64 read packets at any address; older versions of
            // LLVM read byte by byte.
            flags.push("-Clink-arg=--cpu-features=+allows-misaligned-mem-access".into());
        }
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        let mut cargo = Command::new(&self.cargo);
        cargo
            .current_dir(workspace)
            .args([command, "--release", "--bins", "--package", "limiter-ebpf"])
            .args(["--target", TARGET, "-Z", "build-std=core"]);
        for (name, _) in env::vars_os() {
            if name.to_str().is_some_and(is_for_the_host) {
                cargo.env_remove(name);
            }
        }
        cargo
            .env("RUSTC", &self.rustc)
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
            // Empty, so that none is taken from the user's configuration either.
            .env("RUSTC_WRAPPER", "")
            .env("RUSTC_WORKSPACE_WRAPPER", "");
        if self.bootstrap {
            cargo.env("RUSTC_BOOTSTRAP", "1");
        }
        cargo
    }
}

/// What cargo and rustup tell a build about the host's compiler is not for the
/// BPF one.
fn is_for_the_host(variable: &str) -> bool {
    const KEPT: [&str; 3] = ["CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_BUILD_JOBS"];
    const OTHERS: [&str; 11] = [
        "RUSTUP_TOOLCHAIN",
        "RUSTC_LINKER",
        "RUSTFLAGS",
        "RUSTDOC",
        "TARGET",
        "HOST",
        "PROFILE",
        "OPT_LEVEL",
        "DEBUG",
        "OUT_DIR",
        "LD_LIBRARY_PATH",
    ];
    let of_cargo = variable.starts_with("CARGO_")
        && !KEPT.contains(&variable)
        && !variable.starts_with("CARGO_HTTP_")
        && !variable.starts_with("CARGO_REGISTR");
    of_cargo || OTHERS.contains(&variable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toolchain(programs: &Path) -> BpfToolchain {
        BpfToolchain {
            description: "a test's".into(),
            cargo: programs.join("bin/cargo"),
            rustc: programs.join("bin/rustc"),
            linker: programs.join("bin/bpf-linker"),
            bootstrap: true,
            llvm: 22,
        }
    }

    #[test]
    fn a_record_counts_only_while_its_programs_exist() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(BpfToolchain::read(place.path()).unwrap(), None);
        let chosen = toolchain(place.path());
        fs::write(place.path().join(FILE), toml::to_string(&chosen).unwrap()).unwrap();
        assert_eq!(BpfToolchain::read(place.path()).unwrap(), None);
        fs::create_dir(place.path().join("bin")).unwrap();
        for program in [&chosen.cargo, &chosen.rustc, &chosen.linker] {
            fs::write(program, "").unwrap();
        }
        assert_eq!(BpfToolchain::read(place.path()).unwrap(), Some(chosen));
    }

    #[test]
    fn a_damaged_record_is_named() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join(FILE), "cargo = 1").unwrap();
        let error = format!("{:#}", BpfToolchain::read(place.path()).unwrap_err());
        assert!(error.contains(FILE) && error.contains("remove it"), "{error}");
    }

    #[test]
    fn the_host_compilers_settings_do_not_reach_the_bpf_compiler() {
        for variable in ["RUSTUP_TOOLCHAIN", "CARGO_TARGET_DIR", "CARGO_BUILD_TARGET", "RUSTFLAGS"]
        {
            assert!(is_for_the_host(variable), "{variable}");
        }
        for variable in ["PATH", "HOME", "CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_HTTP_PROXY"] {
            assert!(!is_for_the_host(variable), "{variable}");
        }
    }

    #[test]
    fn no_path_of_the_machine_is_left_in_the_object() {
        let command =
            toolchain(Path::new("/opt/rust")).cargo(Path::new("/src"), "build", "x86_64", &[]);
        let flags = command.get_envs().find(|(name, _)| *name == "CARGO_ENCODED_RUSTFLAGS");
        let flags = flags.unwrap().1.unwrap().to_str().unwrap();
        for remap in ["--remap-path-prefix=/src=limiterd", "--remap-path-prefix=/opt/rust=rust"] {
            assert!(flags.split('\x1f').any(|flag| flag == remap), "{flags}");
        }
    }
}
