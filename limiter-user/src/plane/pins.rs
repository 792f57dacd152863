//! Names on the BPF file system.
//!
//! `<pin-dir>/v<ABI>` holds the maps and links that are in force. A start
//! builds `<pin-dir>/new` and exchanges the two in one step, so that at every
//! moment one complete set is there, and a failed start leaves none of its own.

use std::{
    fs::{self, DirBuilder, File},
    io::ErrorKind,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use limiter_common::ABI_VERSION;
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with, statfs};

use crate::error::{Error, Kind, Result};

/// `BPF_FS_MAGIC` of include/uapi/linux/magic.h.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

/// The pin directory, held by this process alone.
#[derive(Debug)]
pub(super) struct Pins {
    root: PathBuf,
    /// Set while a start is under way.
    staged: bool,
    /// Locked as long as it is open.
    _lock: File,
}

/// Pin of an interface's link.
pub(super) fn link_pin(interface: &str) -> String {
    format!("link-{interface}")
}

/// The interface whose link is pinned at this path.
fn linked_interface(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()?.strip_prefix("link-")
}

impl Pins {
    /// Takes the directory and makes an empty staging directory in it.
    pub(super) fn stage(root: &Path) -> Result<Self> {
        require_bpf_file_system(root)?;
        make(root)?;
        let lock = lock(root)?;
        let pins = Self { root: root.to_owned(), staged: true, _lock: lock };
        remove_directory(&pins.staging())?;
        make(&pins.staging())?;
        Ok(pins)
    }

    /// Where a start puts its pins.
    pub(super) fn staging(&self) -> PathBuf {
        self.root.join("new")
    }

    /// Where the pins in force are.
    pub(super) fn live(&self) -> PathBuf {
        self.root.join(format!("v{ABI_VERSION}"))
    }

    /// Makes the staged pins the ones in force, and removes those before.
    pub(super) fn publish(&mut self) -> Result<()> {
        let (staging, live) = (self.staging(), self.live());
        let flags = if live.exists() { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
        renameat_with(CWD, &staging, CWD, &live, flags).map_err(|error| {
            Error::failed(format!("cannot put the pins in place at {}: {error}", live.display()))
        })?;
        self.staged = false;
        // What was there before is in the staging directory now.
        for before in list(&staging)?.iter().filter_map(|path| linked_interface(path)) {
            if !self.holds_link(before) {
                tracing::warn!("{before}: no longer protected; an earlier limiterd had it");
            }
        }
        remove_directory(&staging).map(|_| ())
    }

    /// Whether the link of an interface is pinned.
    pub(super) fn holds_link(&self, interface: &str) -> bool {
        self.live().join(link_pin(interface)).exists()
    }

    /// Removes everything of ours, and the directory if nothing else is in it.
    pub(super) fn remove(mut self) -> Result<()> {
        self.staged = false;
        remove_ours(&self.root).map(|_| ())
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if self.staged {
            // A start that failed: an error here cannot be told to anybody who
            // does not already see one.
            let _ = remove_directory(&self.staging());
            let _ = fs::remove_dir(&self.root);
        }
    }
}

/// Removes everything of ours under `root` unless a daemon holds it; says how
/// many links there were.
pub(super) fn remove_all(root: &Path) -> Result<usize> {
    if !root.exists() {
        return Ok(0);
    }
    let _lock = lock(root)?;
    remove_ours(root)
}

fn remove_ours(root: &Path) -> Result<usize> {
    let mut links = 0;
    for entry in list(root)? {
        let name = entry.file_name().unwrap_or_default().to_string_lossy();
        let version = name.strip_prefix('v').is_some_and(|digits| digits.parse::<u32>().is_ok());
        if version || name == "new" {
            links += remove_directory(&entry)?;
        }
    }
    match fs::remove_dir(root) {
        Err(error)
            if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) =>
        {
            Err(failed("remove", root, &error))
        }
        _ => Ok(links),
    }
}

/// Removes a directory of pins; says how many of them were links.
fn remove_directory(directory: &Path) -> Result<usize> {
    let mut links = 0;
    for path in list(directory)? {
        fs::remove_file(&path).map_err(|error| failed("remove", &path, &error))?;
        links += usize::from(linked_interface(&path).is_some());
    }
    match fs::remove_dir(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(failed("remove", directory, &error))
        }
        _ => Ok(links),
    }
}

fn list(directory: &Path) -> Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Ok(entries) => entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<std::io::Result<_>>()
            .map_err(|error| failed("list", directory, &error)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed("list", directory, &error)),
    }
}

fn make(directory: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(failed("make", directory, &error))
        }
        _ => Ok(()),
    }
}

fn lock(root: &Path) -> Result<File> {
    let file = File::open(root).map_err(|error| failed("open", root, &error))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        Error::failed(format!("another limiterd uses the pin directory {}", root.display()))
            .hint("stop it first (limiterctl detach), or give this one its own --pin-dir")
    })?;
    Ok(file)
}

/// Checks that the directory is, or would be, on a BPF file system.
pub(crate) fn require_bpf_file_system(root: &Path) -> Result<()> {
    let there = root.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    match statfs(there) {
        // The type is a C long of another width on other machines.
        Ok(facts) if u64::try_from(facts.f_type).is_ok_and(|magic| magic == BPF_FS_MAGIC) => Ok(()),
        _ => Err(Error::failed(format!("{} is not on a BPF file system", root.display()))
            .hint("mount one: mount -t bpf bpf /sys/fs/bpf")),
    }
}

fn failed(verb: &str, path: &Path, error: &std::io::Error) -> Error {
    let message = format!("cannot {verb} {}: {error}", path.display());
    if error.kind() == ErrorKind::PermissionDenied {
        Error::new(Kind::Permission, message).hint("run as root")
    } else {
        Error::failed(message)
    }
}
