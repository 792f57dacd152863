//! Builds the BPF object with the compiler that the set-up step chose.
//!
//! Without one the crate is still built, checked and tested, but holds no
//! object; `LIMITER_REQUIRE_BPF=1` makes that an error.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

#[path = "bpf_toolchain.rs"]
mod bpf_toolchain;

use bpf_toolchain::BpfToolchain;

const OBJECTS: [&str; 3] = ["limiter", "limiter-test", "limiter-bench"];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        // Without the backtrace that a returned error would print.
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    println!("cargo:rustc-check-cfg=cfg(bpf_object)");
    let manifest = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let workspace = manifest.parent().context("the crate has no workspace around it")?;
    for path in [
        bpf_toolchain::FILE,
        "Cargo.toml",
        "Cargo.lock",
        "limiter-common/Cargo.toml",
        "limiter-common/src",
        "limiter-ebpf/Cargo.toml",
        "limiter-ebpf/src",
        "limiter-user/bpf_toolchain.rs",
    ] {
        println!("cargo:rerun-if-changed={}", workspace.join(path).display());
    }
    if let Some(toolchain) = BpfToolchain::read(workspace)? {
        return build(workspace, &toolchain);
    }
    println!("cargo:rerun-if-env-changed=LIMITER_REQUIRE_BPF");
    if env::var_os("LIMITER_REQUIRE_BPF").is_some_and(|value| value == "1") {
        bail!("no BPF compiler is set up; run: cargo xtask build");
    }
    println!(
        "cargo:warning=built without the BPF object: no BPF compiler is set up; to have limiterd \
         work, run: cargo xtask build"
    );
    Ok(())
}

fn build(workspace: &Path, toolchain: &BpfToolchain) -> Result<()> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let arch = env::var("CARGO_CFG_TARGET_ARCH")?;
    // One directory for all profiles: the object is the same.
    let target_dir = out
        .ancestors()
        .find(|directory| directory.ends_with("target"))
        .map_or_else(|| out.join("bpf"), |target| target.join("bpf"));
    let output = toolchain
        .cargo(workspace, "build", &arch, &[])
        .arg("--target-dir")
        .arg(&target_dir)
        .output()
        .with_context(|| format!("cannot start {}", toolchain.cargo.display()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let mend = mend(&text).map_or_else(String::new, |reason| {
            format!("\n{reason}: remove {} and run: cargo xtask build", bpf_toolchain::FILE)
        });
        bail!("the BPF program does not build with {}\n{text}{mend}", toolchain.description);
    }
    for object in OBJECTS {
        let from = target_dir.join(bpf_toolchain::TARGET).join("release").join(object);
        fs::copy(&from, out.join(object))
            .with_context(|| format!("cannot copy {}", from.display()))?;
    }
    let digest = Sha256::digest(fs::read(out.join(OBJECTS[0]))?);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("cargo:rustc-env=LIMITER_OBJECT_SHA256={digest}");
    println!("cargo:rustc-cfg=bpf_object");
    Ok(())
}

/// What is wrong with the toolchain, if not the program is at fault.
fn mend(text: &str) -> Option<&'static str> {
    const FAULTS: [(&str, &str); 4] = [
        ("Invalid record", "the compiler and bpf-linker are of different LLVM versions"),
        ("can't find crate for `core`", "the compiler has lost its library's source"),
        ("library/Cargo.lock", "the compiler has lost its library's source"),
        ("error: linker `", "bpf-linker does not start"),
    ];
    let fault = FAULTS.iter().find(|(symptom, _)| text.contains(symptom))?;
    Some(fault.1)
}
