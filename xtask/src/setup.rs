//! Choosing, and if need be installing, a compiler for BPF and its linker.
//!
//! In this order: a compiler that is there with a linker for it, a rustup
//! nightly before the system's; one for which a linker can be built; the
//! compiler of Debian or Ubuntu; a clear stop. Nothing is fetched but from
//! package registries.

use std::{env, fs, path::Path, process::Command};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::{
    apt,
    bpf_toolchain::{BpfToolchain, FILE},
    compiler::{self, Compiler},
    linker::{self, Linker},
    step::{self, cargo, output},
};

/// Compiler, cargo and library source, as Debian and Ubuntu name them; the
/// first set that is new enough is taken.
const PACKAGES: [[&str; 3]; 2] =
    [["rustc-web", "cargo-web", "rust-web-src"], ["rustc", "cargo", "rust-src"]];

/// What is to be done to have a compiler and a linker for it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Both are there.
    Ready(Compiler, Linker),
    /// The linker is to be built.
    BuildLinker(Compiler),
    /// A compiler is to be installed, then a linker.
    InstallCompiler,
}

/// The plan for what there is on this machine.
pub(crate) fn plan() -> Plan {
    choose(compiler::usable(), &linker::all(), linker::can_be_built)
}

/// `compilers` are in order of preference.
fn choose(
    compilers: Vec<Compiler>,
    linkers: &[Linker],
    can_be_built: impl Fn(u32) -> bool,
) -> Plan {
    for compiler in &compilers {
        if let Some(linker) = linkers.iter().find(|linker| linker.llvm == compiler.llvm) {
            return Plan::Ready(compiler.clone(), linker.clone());
        }
    }
    compilers
        .into_iter()
        .find(|compiler| can_be_built(compiler.llvm))
        .map_or(Plan::InstallCompiler, Plan::BuildLinker)
}

/// The recorded toolchain, or one that is set up and recorded now.
pub(crate) fn ensure(workspace: &Path) -> Result<BpfToolchain> {
    if let Some(toolchain) = BpfToolchain::read(workspace)? {
        return Ok(toolchain);
    }
    let (compiler, linker) = match plan() {
        Plan::Ready(compiler, linker) => (compiler, linker.path),
        Plan::BuildLinker(compiler) => {
            let linker = linker::build(compiler.llvm)?;
            (compiler, linker)
        }
        Plan::InstallCompiler => {
            let compiler = install_compiler()?;
            let linkers = linker::all();
            let linker = linkers.into_iter().find(|linker| linker.llvm == compiler.llvm);
            let linker =
                linker.map_or_else(|| linker::build(compiler.llvm), |found| Ok(found.path));
            (compiler, linker?)
        }
    };
    eprintln!("==> BPF compiler: {} (LLVM {})", compiler.description, compiler.llvm);
    eprintln!("==> BPF linker: {}", linker.display());
    let toolchain = BpfToolchain {
        description: compiler.description,
        cargo: compiler.cargo,
        rustc: compiler.rustc,
        linker,
        bootstrap: compiler.bootstrap,
        llvm: compiler.llvm,
    };
    fs::write(workspace.join(FILE), toml::to_string(&toolchain)?)
        .with_context(|| format!("cannot write {FILE}"))?;
    Ok(toolchain)
}

/// How a user gets a toolchain without this step.
pub(crate) fn mend() -> String {
    match compiler::usable().first() {
        Some(compiler) => {
            format!(
                "there is no bpf-linker for {}; {}",
                compiler.description,
                linker::mend(compiler.llvm)
            )
        }
        None => "there is no compiler for BPF; run: rustup toolchain install nightly --component \
                 rust-src"
            .to_owned(),
    }
}

/// Installs the distribution's compiler.
fn install_compiler() -> Result<Compiler> {
    if !apt::is_usable() {
        bail!(
            "{}; or, on Debian and Ubuntu, run this command once as root, which installs it",
            mend()
        );
    }
    // Lists of yesterday may lack the update that is new enough.
    apt::update();
    let packages = PACKAGES
        .into_iter()
        .find(|[compiler, ..]| {
            apt::candidate(compiler).is_some_and(|version| compiler::new_enough(&version))
        })
        .ok_or_else(|| {
            let least = env!("CARGO_PKG_RUST_VERSION");
            anyhow!("this distribution has no Rust {least}, and {}", mend())
        })?;
    apt::install(&packages)?;
    compiler::system()
        .filter(|compiler| compiler.problem.is_none())
        .with_context(|| format!("{} have no compiler with source", packages.join(" ")))
}

/// Installs rustfmt and clippy if they are missing.
pub(crate) fn ensure_lints(workspace: &Path) -> Result<()> {
    // The set of packages, if cargo itself is from one.
    const PROGRAMS: [(&str, &str, &str); 2] =
        [("fmt", "rustfmt", "rustfmt-web"), ("clippy", "clippy", "rust-web-clippy")];
    let missing = PROGRAMS.into_iter().filter(|(subcommand, ..)| {
        output(cargo(workspace).args([subcommand, "--version"])).is_none()
    });
    let (components, packages): (Vec<_>, Vec<_>) =
        missing.map(|(_, component, package)| (component, package)).unzip();
    if components.is_empty() {
        return Ok(());
    }
    if env::var_os("RUSTUP_TOOLCHAIN").is_some() {
        let mut rustup = Command::new("rustup");
        step::run(
            &format!("adding {}", components.join(" and ")),
            rustup.args(["component", "add"]).args(&components),
        )
    } else if apt::is_usable() {
        apt::install(&packages)
    } else {
        bail!("cargo has no {}; install it", components.join(" and no "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiler(name: &str, llvm: u32) -> Compiler {
        Compiler {
            description: name.into(),
            cargo: "cargo".into(),
            rustc: "rustc".into(),
            bootstrap: false,
            llvm,
            problem: None,
        }
    }

    fn linker(llvm: u32) -> Linker {
        Linker { path: format!("bpf-linker-{llvm}").into(), llvm }
    }

    #[test]
    fn the_first_compiler_with_a_linker_of_its_llvm_is_taken() {
        let compilers = vec![compiler("nightly", 23), compiler("system", 22)];
        let ready = |name, llvm| Plan::Ready(compiler(name, llvm), linker(llvm));
        let both = [linker(22), linker(23)];
        assert_eq!(choose(compilers.clone(), &both, |_| true), ready("nightly", 23));
        assert_eq!(choose(compilers, &both[..1], |_| true), ready("system", 22));
    }

    #[test]
    fn a_linker_of_another_llvm_is_none() {
        let compilers = vec![compiler("nightly", 23), compiler("system", 22)];
        let others = [linker(21), linker(24)];
        assert_eq!(
            choose(compilers.clone(), &others, |llvm| llvm == 22),
            Plan::BuildLinker(compiler("system", 22))
        );
        assert_eq!(
            choose(compilers.clone(), &others, |_| true),
            Plan::BuildLinker(compiler("nightly", 23))
        );
        assert_eq!(choose(compilers, &others, |_| false), Plan::InstallCompiler);
    }

    #[test]
    fn without_a_compiler_a_linker_is_of_no_use() {
        assert_eq!(choose(vec![], &[linker(22)], |_| true), Plan::InstallCompiler);
    }
}
