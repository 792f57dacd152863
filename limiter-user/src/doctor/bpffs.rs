//! The BPF file system at the pin directory, and who may write there.

use std::{
    ffi::OsString,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{Access, AtFlags, CWD, accessat, stat};

use super::{Finding, found};
use crate::{api::Level, error::Kind, plane::require_bpf_file_system};

const SUBJECT: &str = "pin directory";

/// A line of `/proc/thread-self/mountinfo`.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    point: PathBuf,
    kind: String,
    options: String,
    read_only: bool,
}

/// Looks at the file system of the pin directory, then at the rights; a right
/// of this process that is missing is of [`Kind::Permission`].
pub(super) fn directory(root: &Path, mountinfo: &str) -> Vec<(Kind, Finding)> {
    let error = |fact: String| found(Level::Error, SUBJECT, fact).so("links cannot be pinned");
    let there = nearest(root);
    if let Err(absent) = require_bpf_file_system(root) {
        let mend = absent.hint.unwrap_or_default();
        let mend = if root.starts_with("/sys/fs/bpf") {
            mend
        } else {
            format!("{mend}, or name a directory on one with --pin-dir")
        };
        return vec![(Kind::Failed, error(absent.message).mend(mend))];
    }
    let mut findings = Vec::new();
    let resolved = there.canonicalize().unwrap_or_else(|_| there.to_owned());
    let mounts = mounts(mountinfo);
    if let Some(mount) = holding(&resolved, &mounts).filter(|mount| mount.kind == "bpf") {
        let point = mount.point.display();
        if mount.read_only {
            let fact = format!("the BPF file system at {point} is read-only");
            let mend = format!(
                "mount -o remount,rw {point}; under systemd ReadWritePaths={point} in the unit"
            );
            return vec![(Kind::Failed, error(fact).mend(mend))];
        }
        let fact = format!("a BPF file system is mounted at {point} ({})", mount.options);
        findings.push((Kind::Failed, found(Level::Ok, "bpf file system", fact)));
    }
    findings.extend(rights(root, there).map(|finding| (Kind::Permission, finding)));
    findings
}

/// The directory, or the nearest above it that is there.
fn nearest(root: &Path) -> &Path {
    root.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"))
}

/// Whether this user may write where the pins are, and who else may.
fn rights(root: &Path, there: &Path) -> Option<Finding> {
    let me = rustix::process::geteuid().as_raw();
    let facts = stat(there).ok()?;
    let allowed = accessat(
        CWD,
        there,
        Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK,
        AtFlags::EACCESS,
    );
    let owner = Owner { uid: facts.st_uid, mode: facts.st_mode, me };
    Some(told(root, there, owner, allowed.is_ok()))
}

#[derive(Clone, Copy)]
struct Owner {
    uid: u32,
    mode: u32,
    /// The user of this process.
    me: u32,
}

fn told(root: &Path, there: &Path, owner: Owner, allowed: bool) -> Finding {
    let Owner { uid, mode, me } = owner;
    let (shown, mode) = (there.display(), mode & 0o7777);
    if !allowed {
        let verb = if there == root { "use" } else { "make a directory in" };
        let fact = format!(
            "this user ({me}) may not {verb} {shown}, which belongs to user {uid} (mode {mode:o})"
        );
        return found(Level::Error, SUBJECT, fact)
            .so("links cannot be pinned")
            .mend("run as root (sudo), or name a directory of this user with --pin-dir");
    }
    if there != root {
        let fact = format!("{} is not there yet; a start makes it", root.display());
        return found(Level::Ok, SUBJECT, fact);
    }
    if uid != me && uid != 0 {
        return found(Level::Warning, SUBJECT, format!("{shown} belongs to user {uid}"))
            .so("that user can take the protection off")
            .mend(format!("chown {me} {shown}"));
    }
    if mode & 0o022 != 0 {
        return found(Level::Warning, SUBJECT, format!("others may write to {shown} ({mode:o})"))
            .so("they can take the protection off")
            .mend(format!("chmod 700 {shown}"));
    }
    found(Level::Ok, SUBJECT, format!("{shown}, of user {uid} (mode {mode:o})"))
}

/// Reads the text of `/proc/thread-self/mountinfo`; lines of another form are left out.
fn mounts(text: &str) -> Vec<Mount> {
    text.lines().filter_map(mount).collect()
}

/// `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAG...] - KIND SOURCE OPTIONS`
fn mount(line: &str) -> Option<Mount> {
    let (place, kind) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(4);
    let (point, options) = (place.next()?, place.next()?);
    let mut kind = kind.split(' ');
    let (kind, of_all) = (kind.next()?, kind.nth(1).unwrap_or_default());
    // Either the mount or the whole file system.
    let read_only = [options, of_all].into_iter().any(|all| all.split(',').any(|it| it == "ro"));
    Some(Mount {
        point: unescaped(point),
        kind: kind.to_owned(),
        options: options.to_owned(),
        read_only,
    })
}

/// Blanks and backslashes are written as three octal digits.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(byte) = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            bytes.push(byte);
            rest = &after[3..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// The mount that a path is on: of the deepest, the last, which hides those
/// before.
fn holding<'a>(path: &Path, mounts: &'a [Mount]) -> Option<&'a Mount> {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    above.max_by_key(|mount| mount.point.components().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &str = "\
23 28 0:22 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
35 23 0:30 / /sys/fs/bpf rw,nosuid,nodev,noexec,relatime shared:11 - bpf bpf rw,mode=700
36 28 0:31 / /mnt/with\\040blank ro,relatime - bpf bpf rw
37 28 0:32 / /mnt/all rw,relatime shared:2 master:3 - bpf none ro
";

    #[test]
    fn mounts_are_read() {
        let mounts = mounts(MOUNTINFO);
        assert_eq!(mounts.len(), 5);
        let at = |path: &str| holding(Path::new(path), &mounts).unwrap();
        let bpf = at("/sys/fs/bpf/limiterd");
        assert_eq!((bpf.kind.as_str(), bpf.read_only), ("bpf", false));
        assert_eq!(bpf.options, "rw,nosuid,nodev,noexec,relatime");
        assert_eq!(at("/sys/fs/bpfx").kind, "sysfs");
        assert_eq!(at("/run").kind, "ext4");
        assert!(at("/mnt/with blank/x").read_only);
        assert!(at("/mnt/all").read_only);
    }

    #[test]
    fn the_last_of_two_mounts_counts() {
        let twice = "1 0 0:1 / /b rw - tmpfs t rw\n2 0 0:2 / /b ro - bpf b rw\n";
        let mounts = mounts(twice);
        assert_eq!(holding(Path::new("/b/x"), &mounts).unwrap().kind, "bpf");
    }

    #[test]
    fn lines_of_another_form_are_left_out() {
        for text in ["", "x", "1 2 3 4 5", " - ", "1 2 0:3 / /a rw", "1 2 0:3 / - bpf bpf rw"] {
            assert_eq!(mounts(text), [], "{text}");
        }
        for (text, path) in [("\\", "\\"), ("\\04", "\\04"), ("\\999", "\\999"), ("a\\134", "a\\")]
        {
            assert_eq!(unescaped(text), Path::new(path));
        }
    }

    #[test]
    fn rights_are_told() {
        let root = Path::new("/sys/fs/bpf/limiterd");
        let owner = |uid, mode, me| Owner { uid, mode, me };
        for (owner, allowed, level, word) in [
            (owner(0, 0o40700, 0), true, Level::Ok, "700"),
            (owner(1000, 0o40700, 1000), true, Level::Ok, "1000"),
            (owner(0, 0o40700, 1000), false, Level::Error, "--pin-dir"),
            (owner(1000, 0o40700, 0), true, Level::Warning, "chown 0"),
            (owner(0, 0o40777, 0), true, Level::Warning, "chmod 700"),
        ] {
            let finding = told(root, root, owner, allowed);
            assert_eq!(finding.level, level, "{finding}");
            assert!(finding.to_string().contains(word), "{finding}");
        }
        let above = Path::new("/sys/fs/bpf");
        let finding = told(root, above, owner(0, 0o41777, 0), true);
        assert_eq!(finding.level, Level::Ok, "{finding}");
        let finding = told(root, above, owner(0, 0o40700, 1000), false);
        assert!(finding.finding.contains("make a directory in /sys/fs/bpf,"), "{finding}");
    }
}
