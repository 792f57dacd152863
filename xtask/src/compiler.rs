//! The Rust compilers of this machine that may build for BPF.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::step::output;

/// A compiler, usable or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compiler {
    pub(crate) description: String,
    pub(crate) cargo: PathBuf,
    pub(crate) rustc: PathBuf,
    /// Whether it has to be told to allow unstable options.
    pub(crate) bootstrap: bool,
    /// Its LLVM major version.
    pub(crate) llvm: u32,
    /// Why it cannot build for BPF, with the mend.
    pub(crate) problem: Option<String>,
}

/// The nightlies of rustup and the compiler under /usr, best first.
pub(crate) fn all() -> Vec<Compiler> {
    let mut compilers = nightlies();
    compilers.extend(system());
    compilers
}

/// Those that can build for BPF, best first.
pub(crate) fn usable() -> Vec<Compiler> {
    let mut compilers = all();
    compilers.retain(|compiler| compiler.problem.is_none());
    compilers
}

fn nightlies() -> Vec<Compiler> {
    let list = output(Command::new("rustup").args(["toolchain", "list"])).unwrap_or_default();
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    let nightlies = names.filter(|name| name.contains("nightly"));
    nightlies
        .filter_map(|name| {
            let rustc =
                output(Command::new("rustup").args(["which", "--toolchain", name, "rustc"]))?;
            let mend = format!("rustup component add rust-src --toolchain {name}");
            inspect(&format!("rustup's {name}"), Path::new(rustc.trim()), &mend)
        })
        .collect()
}

/// The compiler under /usr.
pub(crate) fn system() -> Option<Compiler> {
    let mend = "apt-get install rust-web-src (or rust-src, to match the package of rustc)";
    inspect("the system's rustc", Path::new("/usr/bin/rustc"), mend)
}

fn inspect(name: &str, rustc: &Path, source_mend: &str) -> Option<Compiler> {
    // Without this, a rustup under /usr would answer for the toolchain in use.
    let ask = |arguments: &[&str]| {
        output(Command::new(rustc).args(arguments).env_remove("RUSTUP_TOOLCHAIN"))
    };
    let (release, llvm) = versions(&ask(&["-vV"])?)?;
    let sysroot = PathBuf::from(ask(&["--print", "sysroot"])?.trim());
    let [cargo, rustc] = ["cargo", "rustc"].map(|program| sysroot.join("bin").join(program));
    let problem = if !new_enough(&release) {
        Some(format!("older than {}", env!("CARGO_PKG_RUST_VERSION")))
    } else if !sysroot.join("lib/rustlib/src/rust/library/Cargo.lock").exists() {
        Some(format!("without the library's source; {source_mend}"))
    } else if !cargo.exists() || !rustc.exists() {
        Some("without its cargo".to_owned())
    } else {
        None
    };
    Some(Compiler {
        description: format!("{name} {release}"),
        bootstrap: !release.contains("nightly"),
        cargo,
        rustc,
        llvm,
        problem,
    })
}

/// Release and LLVM major version in the output of `rustc -vV`.
fn versions(text: &str) -> Option<(String, u32)> {
    let field = |name| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let llvm = field("LLVM version:")?.split('.').next()?.parse().ok()?;
    Some((field("release:")?.to_owned(), llvm))
}

/// Whether a version of Rust builds this workspace.
pub(crate) fn new_enough(version: &str) -> bool {
    major_minor(version) >= major_minor(env!("CARGO_PKG_RUST_VERSION"))
}

/// The first two numbers of a version; `None`, which is less than any other, if
/// it does not begin with them.
pub(crate) fn major_minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
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
        assert_eq!(versions("release: 1.60.0\nLLVM version: unknown\n"), None);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        for version in ["1.88.0", "1.100", "1.97.0-nightly", "2.0", "1.96.0+dfsg1-1~deb12u2"] {
            assert!(new_enough(version), "{version}");
        }
        for version in ["1.87.9", "1.9.0", "0.99", "", "unknown", "1"] {
            assert!(!new_enough(version), "{version}");
        }
    }

    #[test]
    fn the_compiler_of_these_tests_is_understood() {
        let sysroot = output(Command::new("rustc").args(["--print", "sysroot"])).unwrap();
        let rustc = Path::new(sysroot.trim()).join("bin/rustc");
        let compiler = inspect("this", &rustc, "mend").unwrap();
        assert_eq!(compiler.rustc, rustc);
        assert!(compiler.llvm > 15, "{compiler:?}");
    }
}
