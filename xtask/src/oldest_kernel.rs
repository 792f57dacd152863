//! The program on the oldest kernel that is supported: Debian 12's 6.1, booted
//! in software emulation.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    apt,
    run::{self, Profile},
    step::{self, cargo, output},
    tools,
};

/// Depends on the image of the newest 6.1.
const PACKAGE: &str = "linux-image-cloud-amd64";
/// Longest time for the machine, which needs about one minute.
const SECONDS: &str = "900";
/// The last line of a run in which everything went well.
const DONE: &str = "OLDEST KERNEL: ALL PASSED";
/// What the first process runs.
const INIT: &str = r#"#!/bin/sh
export PATH=/bin RUST_BACKTRACE=0
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
mount -t bpf b /sys/fs/bpf
for place in /run /tmp /var/lib; do mount -t tmpfs t $place; done
uname -r
work() {
    insmod /lib/veth.ko && ip2 link set lo up || return 1
    program-test --exact --test-threads=1 \
        every_case_is_decided_and_charged_as_the_table_says || return 1
    ip2 link add eth0 type veth peer name eth1 && ip2 link set eth0 up &&
        ip2 link set eth1 up ||
        return 1
    limiterd --iface eth0 --xdp-mode native &
    n=0
    until limiterctl status; do
        sleep 1; n=$((n + 1)); [ $n -lt 60 ] || return 1
    done
    limiterctl ban add 192.0.2.1 && limiterctl iface attach eth1 && limiterctl detach || return 1
    [ ! -e /sys/fs/bpf/limiterd ]
}
work && echo "OLDEST KERNEL: ALL PASSED"
poweroff -f
"#;
const APPLETS: [&str; 10] =
    ["cat", "insmod", "ls", "mount", "poweroff", "sh", "sleep", "umount", "uname", "mkdir"];

/// Boots it and runs the table of packets and a daemon on a veth.
pub(crate) fn run(workspace: &Path) -> Result<()> {
    ensure!(std::env::consts::ARCH == "x86_64", "the image is of x86-64");
    let missing = apt::ensure(&tools::EMULATION)?;
    ensure!(missing.is_empty(), "packages are missing: {}", missing.join(" "));
    run::build(workspace, Profile::Release)?;
    let place = workspace.join("target/oldest-kernel");
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place)?;
    let image = image(&place)?;
    let disk = initial_disk(workspace, &place, &image)?;
    let log = place.join("console.log");
    println!("==> booting {}", image.release);
    let status = Command::new("timeout")
        .arg(SECONDS)
        .args(["qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "2G"])
        .args(["-nographic", "-no-reboot", "-nic", "none", "-kernel"])
        .arg(&image.kernel)
        .arg("-initrd")
        .arg(&disk)
        .args(["-append", "console=ttyS0 panic=-1 quiet"])
        .stdin(Stdio::null())
        .stdout(fs::File::create(&log)?)
        .status()
        .context("cannot start qemu")?;
    let console = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    if status.success() && console.lines().any(|line| line.trim() == DONE) {
        println!("    {} loads, decides and attaches as it should", image.release);
        return Ok(());
    }
    let lines: Vec<_> = console.lines().collect();
    let tail = lines[lines.len().saturating_sub(40)..].join("\n");
    bail!("{} failed; the end of {}:\n{tail}", image.release, log.display())
}

/// A kernel from a package.
struct Image {
    release: String,
    kernel: PathBuf,
    veth: PathBuf,
}

fn image(place: &Path) -> Result<Image> {
    let depends = output(Command::new("apt-cache").args(["depends", PACKAGE]))
        .with_context(|| format!("there is no package {PACKAGE}"))?;
    let package = depends
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: "))
        .with_context(|| format!("{PACKAGE} names no kernel"))?
        .to_owned();
    let release = package.trim_start_matches("linux-image-").to_owned();
    ensure!(release.starts_with("6.1."), "this distribution has Linux {release}, not 6.1");
    step::run(
        &format!("fetching {package}"),
        Command::new("apt-get").args(["-q", "download", &package]).current_dir(place),
    )?;
    let archive = fs::read_dir(place)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|it| it == "deb"))
        .context("nothing was fetched")?;
    let root = place.join("image");
    step::run("unpacking it", Command::new("dpkg").arg("-x").arg(archive).arg(&root))?;
    let kernel = root.join(format!("boot/vmlinuz-{release}"));
    let veth = root.join(format!("lib/modules/{release}/kernel/drivers/net/veth.ko"));
    Ok(Image { release, kernel, veth })
}

/// The first and only disk: a shell, our binaries, and what they link to.
fn initial_disk(workspace: &Path, place: &Path, image: &Image) -> Result<PathBuf> {
    let root = place.join("root");
    for directory in ["bin", "proc", "sys", "dev", "run", "tmp", "var/lib", "etc", "lib"] {
        fs::create_dir_all(root.join(directory))?;
    }
    let place_binary = |from: &Path, name: &str| -> Result<()> {
        let to = root.join("bin").join(name);
        fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        for library in libraries(from) {
            let to = root.join(library.strip_prefix("/").unwrap_or(&library));
            fs::create_dir_all(to.parent().context("a directory")?)?;
            fs::copy(&library, &to)
                .with_context(|| format!("cannot copy {}", library.display()))?;
        }
        Ok(())
    };
    for name in ["limiterd", "limiterctl"] {
        place_binary(&workspace.join("target/release").join(name), name)?;
    }
    place_binary(&test_binary(workspace)?, "program-test")?;
    // The shell's own applet of that name knows no veth.
    place_binary(&tool("ip")?, "ip2")?;
    place_binary(&tool("busybox")?, "busybox")?;
    for applet in APPLETS {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet))?;
    }
    fs::copy(&image.veth, root.join("lib/veth.ko")).context("the image has no veth")?;
    let init = root.join("init");
    fs::write(&init, INIT)?;
    fs::set_permissions(&init, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let disk = place.join("disk.gz");
    let pack = "find . | cpio --quiet -o -H newc | gzip -1 > ../disk.gz";
    step::run("packing a disk", Command::new("sh").args(["-c", pack]).current_dir(&root))?;
    Ok(disk)
}

/// The binary of the tests of the loaded program.
fn test_binary(workspace: &Path) -> Result<PathBuf> {
    let mut build = cargo(workspace);
    build.args(["test", "--release", "--package", "limiter-tests", "--test", "program"]);
    build.args(["--no-run", "--message-format", "json"]);
    let messages = output(&mut build).context("the tests do not build")?;
    let executable = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == "program";
        message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
    };
    messages.lines().find_map(executable).context("cargo names no test binary")
}

fn tool(name: &str) -> Result<PathBuf> {
    which::which(name).with_context(|| format!("there is no {name}"))
}

/// What a binary is linked to, by absolute path.
fn libraries(binary: &Path) -> Vec<PathBuf> {
    let text = output(Command::new("ldd").arg(binary)).unwrap_or_default();
    let words = text.split_whitespace().filter(|word| word.starts_with('/'));
    words.map(PathBuf::from).collect()
}
