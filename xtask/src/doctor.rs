//! What is there, what is missing, and the mend.

use std::{path::Path, process::Command};

use anyhow::{Result, bail};

use crate::{
    bpf_toolchain::BpfToolchain,
    setup,
    step::{self, output},
    test::TOOLS,
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
    let findings = [
        compiler_for_the_host(),
        linker_for_the_host(),
        bpf_toolchain(workspace),
        kernel(),
        bpf_file_system(),
        root(),
        tools(),
    ];
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

fn finding(what: &'static str, needed: bool, found: Result<String, &str>) -> Finding {
    Finding { what, found: found.map_err(str::to_owned), needed }
}

fn compiler_for_the_host() -> Finding {
    let version = output(Command::new("rustc").arg("--version"));
    let version = version.map(|version| version.trim().to_owned());
    finding("Rust compiler", true, version.ok_or("install one with rustup"))
}

fn linker_for_the_host() -> Finding {
    let found = which::which("cc").map(|path| path.display().to_string());
    finding("C compiler (as linker)", true, found.map_err(|_| "apt-get install gcc libc6-dev"))
}

fn bpf_toolchain(workspace: &Path) -> Finding {
    let what = "BPF compiler and linker";
    if let Ok(Some(chosen)) = BpfToolchain::read(workspace) {
        let found = format!("{} with {}", chosen.description, chosen.linker.display());
        return finding(what, true, Ok(found));
    }
    let mut compilers = setup::nightlies();
    compilers.extend(setup::system_compiler());
    let ready = compilers.iter().find(|compiler| setup::linker_for(compiler).is_some());
    let installs = step::is_root() && which::which("apt-get").is_ok();
    let found = match (ready, compilers.first()) {
        (Some(compiler), _) => Ok(compiler.description.clone()),
        (None, _) if installs => Ok("not yet; the next build installs them".to_owned()),
        (None, Some(_)) => Err("no bpf-linker; run as root once: cargo xtask build"),
        (None, None) => Err("rustup toolchain install nightly --component rust-src, \
                             then cargo install bpf-linker"),
    };
    finding(what, true, found)
}

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let version = (numbers.next().and_then(Result::ok), numbers.next().and_then(Result::ok));
    let new = version >= (Some(6), Some(1));
    let found = if new { Ok(release) } else { Err("limiterd runs on Linux 6.1 or later") };
    finding("kernel", false, found)
}

fn bpf_file_system() -> Finding {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mounted = mounts.lines().any(|line| line.contains(" /sys/fs/bpf bpf "));
    let found =
        if mounted { Ok("/sys/fs/bpf".to_owned()) } else { Err("mount -t bpf bpf /sys/fs/bpf") };
    finding("BPF file system", false, found)
}

fn root() -> Finding {
    let found = if step::is_root() {
        Ok("yes".to_owned())
    } else {
        Err("the playground, tests on the kernel and limiterd itself need it")
    };
    finding("root", false, found)
}

fn tools() -> Finding {
    let missing: Vec<_> = TOOLS
        .iter()
        .filter(|(program, _)| which::which(program).is_err())
        .map(|(_, package)| *package)
        .collect();
    let names: Vec<_> = TOOLS.iter().map(|(program, _)| *program).collect();
    let mend = format!("apt-get install {}", missing.join(" "));
    let found = if missing.is_empty() { Ok(names.join(", ")) } else { Err(mend.as_str()) };
    finding("programs for the tests", false, found)
}
