//! Names on the BPF file system.
//!
//! `<pin-dir>/v<ABI>` holds the maps and links that are in force. A start
//! builds `<pin-dir>/new`, in which maps that it takes over are pinned a second
//! time, and exchanges the two in one step: at every moment one complete set is
//! there, and a failed start leaves none of its own. What is to go is renamed
//! first, so that nobody takes what is half gone for what is in force.

use std::{
    ffi::CString,
    fs::{self, DirBuilder, File},
    io::ErrorKind,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::DirBuilderExt as _},
    },
    path::{Path, PathBuf},
};

use aya::programs::links::{FdLink, PinnedLink};
use limiter_common::ABI_VERSION;
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with, statfs};

use crate::error::{Error, Kind, Result};

/// `BPF_FS_MAGIC` of include/uapi/linux/magic.h.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

/// Name of the directory that a start builds.
const STAGING: &str = "new";
/// Name of the directory that is taken away: no start takes it for a whole one.
const REMOVED: &str = "removed";

/// The pin directory, held by this process alone.
#[derive(Debug)]
pub(super) struct Pins {
    root: PathBuf,
    /// Set while a start is under way.
    staged: bool,
    /// Locked as long as it is open.
    _lock: File,
}

/// Where the pins in force are.
pub(super) fn live(root: &Path) -> PathBuf {
    root.join(format!("v{ABI_VERSION}"))
}

/// Pin of an interface's link.
pub(super) fn link_pin(interface: &str) -> String {
    format!("link-{interface}")
}

/// The interface whose link is pinned at this path, or was on its way there.
fn linked_interface(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    name.strip_prefix("re").unwrap_or(name).strip_prefix("link-")
}

/// The pins of one load; nothing else is ever removed.
fn is_ours(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    super::load::SHARED.contains(&&*name)
        || ["link-", "relink-", "stats-"].iter().any(|start| name.starts_with(start))
}

impl Pins {
    /// Takes the directory and makes an empty staging directory in it.
    pub(super) fn stage(root: &Path) -> Result<Self> {
        require_bpf_file_system(root)?;
        make(root)?;
        let lock = lock(root)?;
        let mut pins = Self { root: root.to_owned(), staged: false, _lock: lock };
        // Of a detach that did not end.
        take_off(&root.join(REMOVED))?;
        // What a start could stumble over later is found before it begins.
        require_only_ours(&pins.staging())?;
        for directory in pins.loads()? {
            require_only_ours(&directory)?;
        }
        remove_directory(&pins.staging())?;
        make(&pins.staging())?;
        pins.staged = true;
        Ok(pins)
    }

    /// Where a start puts its pins.
    pub(super) fn staging(&self) -> PathBuf {
        self.root.join(STAGING)
    }

    /// Where the pins in force are.
    pub(super) fn live(&self) -> PathBuf {
        live(&self.root)
    }

    /// Makes the staged pins the ones in force, and removes those before, also
    /// those of other versions.
    pub(super) fn publish(&mut self) -> Result<()> {
        let (staging, live) = (self.staging(), self.live());
        let flags = if live.exists() { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
        renameat_with(CWD, &staging, CWD, &live, flags).map_err(|error| {
            Error::failed(format!("cannot put the pins in place at {}: {error}", live.display()))
        })?;
        self.staged = false;
        // What was there before is in the staging directory now.
        let mut before = self.loads()?;
        before.retain(|directory| *directory != live);
        before.push(staging);
        for directory in before {
            for interface in list(&directory)?.iter().filter_map(|path| linked_interface(path)) {
                if !self.holds_link(interface) {
                    tracing::warn!("{interface}: no longer protected; an earlier limiterd had it");
                }
            }
            remove_directory(&directory)?;
        }
        Ok(())
    }

    /// Directories of loads in force, of this version and of others.
    pub(super) fn loads(&self) -> Result<Vec<PathBuf>> {
        let mut loads = ours(&self.root)?;
        loads.retain(|directory| ![STAGING, REMOVED].iter().any(|name| directory.ends_with(name)));
        Ok(loads)
    }

    /// The links that an earlier daemon left pinned, by where.
    pub(super) fn links(&self) -> Result<Vec<PathBuf>> {
        let mut links = Vec::new();
        for directory in self.loads()? {
            let pins = list(&directory)?;
            links.extend(pins.into_iter().filter(|path| linked_interface(path).is_some()));
        }
        Ok(links)
    }

    /// The counters that an earlier daemon left pinned, by where.
    pub(super) fn counters(&self) -> Result<Vec<PathBuf>> {
        let mut counters = Vec::new();
        for directory in self.loads()? {
            let is_counter = |path: &PathBuf| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("stats-"))
            };
            counters.extend(list(&directory)?.into_iter().filter(is_counter));
        }
        Ok(counters)
    }

    /// Where a link is pinned on its way to its name.
    pub(super) fn aside(&self, interface: &str) -> PathBuf {
        self.live().join(format!("re{}", link_pin(interface)))
    }

    /// Puts a pinned link in the place of the one of that name.
    pub(super) fn replace_link(&self, interface: &str) -> Result<()> {
        let (new, path) = (self.aside(interface), self.live().join(link_pin(interface)));
        fs::rename(&new, &path).map_err(|error| {
            let _ = fs::remove_file(&new);
            failed("put in place", &path, &error)
        })
    }

    /// Detaches and unpins the link of an interface.
    pub(super) fn drop_link(&self, interface: &str) -> Result<()> {
        let path = self.live().join(link_pin(interface));
        if !path.exists() {
            return Ok(());
        }
        // The interface may be gone, and the link with it.
        let _ = detach(&path);
        fs::remove_file(&path).map_err(|error| failed("remove", &path, &error))
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
            let _links = remove_directory(&self.staging());
            if list(&self.root).is_ok_and(|rest| rest.is_empty()) {
                remove_if_empty(&self.root);
            }
        }
    }
}

/// Detaches every link of ours under `root` and removes every pin, also under
/// a daemon that hangs; says how many links there were.
pub(super) fn remove_all(root: &Path) -> Result<usize> {
    if !root.exists() {
        return Ok(0);
    }
    require_bpf_file_system(root)?;
    if lock(root).is_err() {
        tracing::warn!("a limiterd still holds {}; it protects nothing any more", root.display());
    }
    remove_ours(root)
}

/// Takes a pinned link off its interface, whoever else holds it open. aya has
/// no call for that.
fn detach(link: &Path) -> std::io::Result<()> {
    // Numbers and structures of include/uapi/linux/bpf.h.
    const BPF_OBJ_GET: libc::c_int = 7;
    const BPF_LINK_DETACH: libc::c_int = 34;
    #[repr(C)]
    struct ObjectGet {
        path: u64,
        fd: u32,
        flags: u32,
    }
    let path = CString::new(link.as_os_str().as_bytes())?;
    let get = ObjectGet { path: path.as_ptr() as u64, fd: 0, flags: 0 };
    // SAFETY: the attributes and the path in them outlive the call.
    let fd =
        unsafe { libc::syscall(libc::SYS_bpf, BPF_OBJ_GET, &raw const get, size_of_val(&get)) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0);
    let fd = fd.ok_or_else(std::io::Error::last_os_error)?;
    // SAFETY: just opened, and owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let number = fd.as_raw_fd();
    let size = size_of_val(&number);
    // SAFETY: the attributes, a descriptor alone, outlive the call.
    let done = unsafe { libc::syscall(libc::SYS_bpf, BPF_LINK_DETACH, &raw const number, size) };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// What is in a pin directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Survey {
    /// Directories of loads.
    pub loads: Vec<LoadPins>,
    /// Everything beside them.
    pub foreign: Vec<PathBuf>,
}

impl Survey {
    /// Whether a link of this program is among those that a start takes over.
    pub(crate) fn holds(&self, program: u32) -> bool {
        let in_force = self.loads.iter().filter(|load| load.stage != Stage::Unfinished);
        in_force.flat_map(|load| &load.links).any(|link| link.program == Some(program))
    }
}

/// A directory with the pins of one load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoadPins {
    /// Where it is.
    pub path: PathBuf,
    /// What it is.
    pub stage: Stage,
    /// Links that are pinned in it.
    pub links: Vec<LinkPin>,
    /// What limiterd has not put there.
    pub foreign: Vec<PathBuf>,
}

/// What a directory of pins is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// What this version takes over.
    Live,
    /// What another version has pinned.
    Other,
    /// What a start or a detach has not finished.
    Unfinished,
}

/// A pinned link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkPin {
    /// Name that its interface had when it was attached.
    pub interface: String,
    /// The kernel's number of its program; none if it cannot be read.
    pub program: Option<u32>,
}

/// Looks at a pin directory and changes nothing.
///
/// # Errors
/// It cannot be read; [`Kind::Permission`] if this user may not.
pub(crate) fn survey(root: &Path) -> Result<Survey> {
    let directories = ours(root)?;
    let mut foreign = list(root)?;
    foreign.retain(|path| !directories.contains(path));
    let loads = directories.into_iter().map(|path| load(root, path)).collect::<Result<_>>()?;
    Ok(Survey { loads, foreign })
}

fn load(root: &Path, path: PathBuf) -> Result<LoadPins> {
    let pins = list(&path)?;
    let link = |path: &PathBuf| {
        let interface = linked_interface(path)?.to_owned();
        let link = PinnedLink::from_pin(path).ok().map(FdLink::from);
        let program = link.and_then(|link| link.info().ok()).map(|info| info.program_id());
        Some(LinkPin { interface, program })
    };
    let links = pins.iter().filter_map(link).collect();
    let foreign = pins.into_iter().filter(|path| !is_ours(path) || is_directory(path)).collect();
    let stage = if path == live(root) {
        Stage::Live
    } else if path.ends_with(STAGING) || path.ends_with(REMOVED) {
        Stage::Unfinished
    } else {
        Stage::Other
    };
    Ok(LoadPins { path, stage, links, foreign })
}

/// The directories of loads under `root`.
fn ours(root: &Path) -> Result<Vec<PathBuf>> {
    let mut directories = list(root)?;
    directories.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let version = name.strip_prefix('v').is_some_and(|digits| digits.parse::<u32>().is_ok());
        (version || name == STAGING || name == REMOVED) && is_directory(path)
    });
    Ok(directories)
}

fn is_directory(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|facts| facts.is_dir())
}

fn remove_ours(root: &Path) -> Result<usize> {
    let removed = root.join(REMOVED);
    let mut links = take_off(&removed)?;
    for directory in ours(root)? {
        // What is not ours stays where it is.
        let is_ours = require_only_ours(&directory).is_ok();
        let moved = is_ours && fs::rename(&directory, &removed).is_ok();
        links += take_off(if moved { &removed } else { &directory })?;
    }
    remove_if_empty(root);
    Ok(links)
}

/// Detaches every link that is pinned in a directory, whoever else holds it
/// open, and removes the pins; says how many links there were.
fn take_off(directory: &Path) -> Result<usize> {
    for link in list(directory)?.iter().filter(|path| linked_interface(path).is_some()) {
        if let Err(error) = detach(link) {
            tracing::warn!("cannot detach {}: {error}", link.display());
        }
    }
    remove_directory(directory)
}

/// Removes a directory of pins; says how many of them were links. What is not
/// ours stays.
fn remove_directory(directory: &Path) -> Result<usize> {
    let mut links = 0;
    for path in list(directory)?.iter().filter(|path| is_ours(path) && !is_directory(path)) {
        fs::remove_file(path).map_err(|error| failed("remove", path, &error))?;
        links += usize::from(linked_interface(path).is_some());
    }
    remove_if_empty(directory);
    Ok(links)
}

/// Removes a directory unless something is in it or on it.
fn remove_if_empty(directory: &Path) {
    match fs::remove_dir(directory) {
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
            tracing::warn!("{} holds more than limiterd put there; it stays", directory.display());
        }
        // Gone already, or a mount point.
        _ => {}
    }
}

/// Checks that a directory of pins, if it is there, holds nothing else.
fn require_only_ours(directory: &Path) -> Result<()> {
    let in_the_way = if directory.symlink_metadata().is_ok() && !is_directory(directory) {
        Some(directory.to_owned())
    } else {
        list(directory)?.into_iter().find(|path| !is_ours(path) || is_directory(path))
    };
    match in_the_way {
        None => Ok(()),
        Some(path) => {
            Err(Error::failed(format!("{} is not limiterd's and in its way", path.display()))
                .hint(format!("remove it (rm -r {}), or use another --pin-dir", path.display())))
        }
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
    if error.kind() == ErrorKind::ReadOnlyFilesystem {
        return Error::failed(format!("{} is on a read-only BPF file system", path.display()))
            .hint("make it writable: mount -o remount,rw /sys/fs/bpf");
    }
    if error.kind() == ErrorKind::PermissionDenied {
        Error::new(Kind::Permission, message).hint("run as root")
    } else {
        Error::failed(message)
    }
}
