//! Finding, and if need be installing, a compiler for BPF and its linker.
//!
//! In this order: a rustup nightly with the library's source; the compiler of
//! Debian or Ubuntu with theirs; a clear stop. Nothing is fetched but from
//! package registries.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::{
    bpf_toolchain::{BpfToolchain, FILE, TARGET},
    step::{self, output},
};

const LINKER_VERSION: &str = "0.13.0";
/// The workspace's `rust-version`.
const LEAST_RUST: (u32, u32) = (1, 88);
/// Compiler, cargo and library source, as Debian and Ubuntu name them; the
/// first set that is new enough is taken.
const PACKAGES: [[&str; 3]; 2] =
    [["rustc-web", "cargo-web", "rust-web-src"], ["rustc", "cargo", "rust-src"]];

/// A compiler with the source of its library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compiler {
    pub(crate) description: String,
    pub(crate) cargo: PathBuf,
    pub(crate) rustc: PathBuf,
    pub(crate) bootstrap: bool,
    pub(crate) llvm: u32,
}

/// The recorded toolchain, or one that is set up and recorded now.
pub(crate) fn ensure(workspace: &Path) -> Result<BpfToolchain> {
    if let Some(toolchain) = BpfToolchain::read(workspace)? {
        return Ok(toolchain);
    }
    let compiler = match nightlies().into_iter().next() {
        Some(compiler) if linker_for(&compiler).is_some() || llvm(compiler.llvm).is_some() => {
            compiler
        }
        _ => distribution_compiler()?,
    };
    eprintln!("==> BPF compiler: {} (LLVM {})", compiler.description, compiler.llvm);
    let linker = match linker_for(&compiler) {
        Some(linker) => linker,
        None => install_linker(&compiler)?,
    };
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

/// The rustup nightlies that have the library's source.
pub(crate) fn nightlies() -> Vec<Compiler> {
    let list = output(Command::new("rustup").args(["toolchain", "list"])).unwrap_or_default();
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    names
        .filter(|name| name.contains("nightly"))
        .filter_map(|name| {
            let program = |program| {
                let which = ["which", "--toolchain", name, program];
                let path = output(Command::new("rustup").args(which))?;
                Some(PathBuf::from(path.trim()))
            };
            compiler(&format!("rustup's {name}"), program("cargo")?, program("rustc")?)
        })
        .collect()
}

/// The compiler under /usr, if it has the library's source.
pub(crate) fn system_compiler() -> Option<Compiler> {
    compiler("the system's rustc", "/usr/bin/cargo".into(), "/usr/bin/rustc".into())
}

fn compiler(name: &str, cargo: PathBuf, rustc: PathBuf) -> Option<Compiler> {
    // Without this, rustup would answer for another compiler.
    let version = output(Command::new(&rustc).arg("-vV").env_remove("RUSTUP_TOOLCHAIN"))?;
    let sysroot = output(Command::new(&rustc).args(["--print", "sysroot"]))?;
    let source = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/Cargo.lock");
    let (release, llvm) = versions(&version)?;
    if !source.exists() || !cargo.exists() || !new_enough(&release) {
        return None;
    }
    Some(Compiler {
        description: format!("{name} {release}"),
        cargo,
        rustc,
        bootstrap: !release.contains("nightly"),
        llvm,
    })
}

/// Release and LLVM major version in the output of `rustc -vV`.
fn versions(text: &str) -> Option<(String, u32)> {
    let field = |name| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let llvm = field("LLVM version:")?.split('.').next()?.parse().ok()?;
    Some((field("release:")?.to_owned(), llvm))
}

fn new_enough(version: &str) -> bool {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= LEAST_RUST,
        _ => false,
    }
}

/// The distribution's compiler, installed if it is missing and can be.
fn distribution_compiler() -> Result<Compiler> {
    if let Some(compiler) = system_compiler() {
        return Ok(compiler);
    }
    let mend = "rustup toolchain install nightly --component rust-src";
    if which::which("apt-get").is_err() {
        bail!("there is no compiler for BPF; install one: {mend}");
    }
    if !step::is_root() {
        bail!(
            "there is no compiler for BPF; install one: {mend}; or run this command once as root, \
             to have it install Debian's"
        );
    }
    update_package_lists()?;
    let packages = PACKAGES
        .into_iter()
        .find(|[compiler, ..]| candidate(compiler).is_some_and(|version| new_enough(&version)))
        .ok_or_else(|| {
            anyhow!("this distribution has no Rust compiler of 1.88 or later; install one: {mend}")
        })?;
    install_packages(&packages)?;
    system_compiler().ok_or_else(|| {
        anyhow!("the packages {} hold no compiler with its source", packages.join(" "))
    })
}

/// The version of a package that apt would install.
fn candidate(package: &str) -> Option<String> {
    let policy = output(Command::new("apt-cache").args(["policy", package]))?;
    let line = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate:"))?;
    Some(line.trim().to_owned()).filter(|version| version != "(none)")
}

fn update_package_lists() -> Result<()> {
    let quiet = ["update", "--quiet", "--quiet"];
    step::run("package lists", Command::new("apt-get").args(quiet))
}

fn install_packages<S: AsRef<OsStr>>(packages: &[S]) -> Result<()> {
    let names: Vec<_> = packages.iter().map(|name| name.as_ref().to_string_lossy()).collect();
    step::run(
        &format!("installing {}", names.join(" ")),
        Command::new("apt-get")
            .args(["install", "--yes", "--quiet", "--quiet", "--no-install-recommends"])
            .args(packages)
            .env("DEBIAN_FRONTEND", "noninteractive"),
    )
}

/// Installs the programs of these packages that are missing. Says which are
/// still missing, by package.
pub(crate) fn ensure_programs<'a>(programs: &[(&str, &'a str)]) -> Result<Vec<&'a str>> {
    let missing = || {
        let absent = programs.iter().filter(|(program, _)| which::which(program).is_err());
        let mut packages: Vec<&str> = absent.map(|(_, package)| *package).collect();
        packages.dedup();
        packages
    };
    let packages = missing();
    if packages.is_empty() || !step::is_root() || which::which("apt-get").is_err() {
        return Ok(packages);
    }
    update_package_lists()?;
    install_packages(&packages)?;
    Ok(missing())
}

/// A bpf-linker that takes what this compiler makes: on the path, or built
/// earlier by this step.
pub(crate) fn linker_for(compiler: &Compiler) -> Option<PathBuf> {
    let built = linker_directory(compiler.llvm).map(|directory| directory.join("bin/bpf-linker"));
    let candidates = which::which("bpf-linker").ok().into_iter().chain(built.ok());
    candidates.into_iter().find(|linker| linker.exists() && links(linker, compiler))
}

/// Whether a linker takes the bitcode of a compiler: it must be of the same
/// LLVM version or a later one, which no linker says of itself.
fn links(linker: &Path, compiler: &Compiler) -> bool {
    const PROBE: &str = "#![feature(no_core, lang_items)]\n#![no_core]\n\
        #[lang = \"pointee_sized\"] pub trait PointeeSized {}\n\
        #[lang = \"meta_sized\"] pub trait MetaSized: PointeeSized {}\n\
        #[lang = \"sized\"] pub trait Sized: MetaSized {}\n\
        #[unsafe(no_mangle)] pub extern \"C\" fn probe() {}\n";
    let Ok(directory) = tempfile::tempdir() else {
        return false;
    };
    let [source, bitcode, object] =
        ["probe.rs", "probe.bc", "probe.o"].map(|name| directory.path().join(name));
    if fs::write(&source, PROBE).is_err() {
        return false;
    }
    let mut compile = Command::new(&compiler.rustc);
    compile
        .args(["--crate-type=lib", "--emit=llvm-bc", "-Copt-level=1", "--target", TARGET, "-o"])
        .args([&bitcode, &source])
        .env("RUSTC_BOOTSTRAP", "1");
    // A compiler that does not take the probe must not hide a good linker.
    if output(&mut compile).is_none() {
        return true;
    }
    let mut link = Command::new(linker);
    output(link.args(["--export", "probe", "-o"]).args([&object, &bitcode])).is_some()
}

/// Where this step builds a linker; outside of the checkout, so that the next
/// one does not build it again.
fn linker_directory(llvm: u32) -> Result<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = cache.or_else(home).context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(cache.join("limiterd").join(format!("bpf-linker-{LINKER_VERSION}-llvm{llvm}")))
}

/// Where LLVM of this major version is installed with its headers.
fn llvm(major: u32) -> Option<PathBuf> {
    let prefix = PathBuf::from(format!("/usr/lib/llvm-{major}"));
    prefix.join("include/llvm").exists().then_some(prefix)
}

fn install_linker(compiler: &Compiler) -> Result<PathBuf> {
    let major = compiler.llvm;
    let package = format!("llvm-{major}-dev");
    if llvm(major).is_none() && step::is_root() && which::which("apt-get").is_ok() {
        update_package_lists()?;
        install_packages(&[&package])?;
    }
    let prefix = llvm(major).ok_or_else(|| {
        anyhow!(
            "bpf-linker for LLVM {major} is missing; install it: cargo install bpf-linker \
             (a build for LLVM {major}); or install {package} and run this command again"
        )
    })?;
    let directory = linker_directory(major)?;
    let feature = format!("llvm-{major}");
    step::run(
        &format!("building bpf-linker {LINKER_VERSION} for LLVM {major} (a few minutes, once)"),
        Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["install", "--quiet", "bpf-linker", "--version", LINKER_VERSION])
            .args(["--no-default-features", "--features", &feature, "--root"])
            .arg(&directory)
            .env("LLVM_PREFIX", prefix)
            .env_remove("CARGO_ENCODED_RUSTFLAGS"),
    )?;
    linker_for(compiler).ok_or_else(|| anyhow!("the bpf-linker that was built does not work"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_and_llvm_are_read_from_rustc() {
        let text = "rustc 1.96.0 (ac68faa20 2026-05-25)\nbinary: rustc\nhost: x\n\
                    release: 1.96.0\nLLVM version: 22.1.8\n";
        assert_eq!(versions(text), Some(("1.96.0".into(), 22)));
        assert_eq!(versions("rustc 1.96.0"), None);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        for version in ["1.88.0", "1.97.0-nightly", "2.0", "1.96.0+dfsg1-1~deb12u2"] {
            assert!(new_enough(version), "{version}");
        }
        for version in ["1.87.9", "1.9.0", "0.99", "", "unknown"] {
            assert!(!new_enough(version), "{version}");
        }
    }
}
