//! What is there, what is missing, and the mend.

use std::{path::Path, process::Command, thread};

use anyhow::{Result, bail};

use crate::{
    apt,
    bpf_toolchain::BpfToolchain,
    compiler::{self, major_minor},
    linker, run,
    setup::{self, Plan},
    step::{self, output},
    tools,
};

/// A finding: what was looked for, and what was found or how to mend it.
struct Finding {
    what: &'static str,
    found: Result<String, String>,
    /// Whether `cargo xtask build` cannot do without it.
    needed: bool,
}

/// Prints all findings.
pub(crate) fn doctor(workspace: &Path) -> Result<()> {
    let mut findings = vec![compiler_for_the_host(), linker_for_the_host()];
    findings.extend(candidates());
    findings.push(bpf_toolchain(workspace));
    findings.extend([kernel(), btf(), namespaces(), bpf_file_system(), cpus(), root(), programs()]);
    for Finding { what, found, .. } in &findings {
        match found {
            Ok(found) => println!("ok       {what}: {found}"),
            Err(mend) => println!("missing  {what}: {mend}"),
        }
    }
    if findings.iter().any(|finding| finding.needed && finding.found.is_err()) {
        bail!("limiterd cannot be built here until that is mended");
    }
    Ok(())
}

/// Something that is needed to run, not to build.
fn finding(what: &'static str, found: Result<String, &str>) -> Finding {
    Finding { what, found: found.map_err(str::to_owned), needed: false }
}

fn needed(what: &'static str, found: Result<String, String>) -> Finding {
    Finding { what, found, needed: true }
}

fn compiler_for_the_host() -> Finding {
    let found = match output(Command::new("rustc").arg("--version")) {
        Some(version) if compiler::new_enough(version.trim_start_matches("rustc ")) => {
            Ok(version.trim().to_owned())
        }
        _ => Err(format!("install Rust {} or later with rustup", env!("CARGO_PKG_RUST_VERSION"))),
    };
    needed("Rust compiler", found)
}

fn linker_for_the_host() -> Finding {
    let found = which::which("cc").map(|path| path.display().to_string());
    needed("C compiler, as linker", found.map_err(|_| "apt-get install gcc libc6-dev".to_owned()))
}

/// What a BPF toolchain could be made of; lacking one of them is no fault.
fn candidates() -> Vec<Finding> {
    let compilers = compiler::all().into_iter().map(|compiler| {
        let name = format!("{}, LLVM {}", compiler.description, compiler.llvm);
        let found = match compiler.problem {
            None => Ok(name),
            Some(problem) => Err(format!("{name}: {problem}")),
        };
        Finding { what: "a compiler for BPF", found, needed: false }
    });
    let linkers = linker::all().into_iter().map(|linker| {
        finding("a linker for BPF", Ok(format!("{}, LLVM {}", linker.path.display(), linker.llvm)))
    });
    compilers.chain(linkers).collect()
}

fn bpf_toolchain(workspace: &Path) -> Finding {
    let found = match BpfToolchain::read(workspace) {
        Ok(Some(chosen)) => Ok(format!("{} with {}", chosen.description, chosen.linker.display())),
        Ok(None) => match setup::plan() {
            Plan::Ready(compiler, linker) => {
                Ok(format!("{} with {}", compiler.description, linker.path.display()))
            }
            Plan::BuildLinker(compiler) => Ok(format!(
                "{}; the next build of limiterd builds a linker first",
                compiler.description
            )),
            Plan::InstallCompiler if apt::is_usable() => {
                Ok("the next build of limiterd installs the distribution's".to_owned())
            }
            Plan::InstallCompiler => Err(setup::mend()),
        },
        Err(error) => Err(format!("{error:#}")),
    };
    needed("BPF toolchain in use", found)
}

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let new = major_minor(&release) >= Some((6, 1));
    finding("kernel", if new { Ok(release) } else { Err("limiterd needs Linux 6.1 or later") })
}

fn btf() -> Finding {
    let path = "/sys/kernel/btf/vmlinux";
    let mend = "boot a kernel that is built with CONFIG_DEBUG_INFO_BTF";
    finding("types of the kernel (BTF)", found_at(path, mend))
}

fn namespaces() -> Finding {
    let mend = "the tests need a kernel that is built with CONFIG_NET_NS";
    finding("network namespaces", found_at("/proc/self/ns/net", mend))
}

fn found_at<'a>(path: &str, mend: &'a str) -> Result<String, &'a str> {
    if Path::new(path).exists() { Ok(path.to_owned()) } else { Err(mend) }
}

fn bpf_file_system() -> Finding {
    let mounted = run::has_bpf_file_system();
    let mend = "mount -t bpf bpf /sys/fs/bpf (cargo xtask run --iface does it)";
    finding("BPF file system", if mounted { Ok("/sys/fs/bpf".to_owned()) } else { Err(mend) })
}

fn cpus() -> Finding {
    let count = thread::available_parallelism().map_or(1, usize::from);
    let mend = "one only; the test of accuracy across CPUs needs two";
    finding("CPUs", if count > 1 { Ok(count.to_string()) } else { Err(mend) })
}

fn root() -> Finding {
    let mend = "limiterd, the playground and the tests on the kernel need it";
    finding("root", if step::is_root() { Ok("yes".to_owned()) } else { Err(mend) })
}

fn programs() -> Finding {
    let missing = apt::missing(&tools::of_tests());
    let names: Vec<_> = tools::of_tests().into_iter().map(|(program, _)| program).collect();
    let mend = format!("apt-get install {}", missing.join(" "));
    let found = if missing.is_empty() { Ok(names.join(", ")) } else { Err(mend.as_str()) };
    finding("programs for the tests", found)
}
