//! The names and permissions of the control sockets.

use std::{
    io::ErrorKind,
    os::unix::{
        fs::{FileTypeExt as _, PermissionsExt as _},
        net::UnixStream,
    },
    path::{Path, PathBuf},
};

use tokio::net::UnixListener;

use crate::{
    access::Groups,
    error::{Error, Kind, Result},
};

/// Who may connect: root and the socket's group.
const ADMIN_MODE: u32 = 0o660;
/// Who may connect to read: everybody on this machine.
const READ_MODE: u32 = 0o666;

/// The two sockets, listening.
pub struct Sockets {
    /// For changes.
    pub(crate) admin: UnixListener,
    /// For reading.
    pub(crate) read: UnixListener,
    /// Removes both names when it goes out of scope.
    pub(crate) files: Files,
    /// Who may do what.
    pub(crate) groups: Groups,
}

/// The sockets' names, and the directory if it is for them alone; removed when
/// they are no longer served.
pub(crate) struct Files {
    sockets: Vec<PathBuf>,
    directory: Option<PathBuf>,
}

/// The read-only sibling of a control socket.
#[must_use]
pub fn read_only_sibling(socket: &Path) -> PathBuf {
    socket.with_file_name("ro.sock")
}

impl Sockets {
    /// Listens at `socket` and at its read-only sibling, each for its group. Sockets that a dead
    /// daemon left are replaced.
    ///
    /// # Errors
    /// Another daemon answers there, or the path cannot be used.
    pub fn listen(socket: &Path, groups: Groups) -> Result<Self> {
        let mut files = Files { sockets: Vec::new(), directory: own_directory(socket) };
        if let Some(directory) = socket.parent()
            && !directory.as_os_str().is_empty()
            && !directory.exists()
        {
            std::fs::create_dir(directory).map_err(|error| failed(directory, &error))?;
            files.directory = Some(directory.to_owned());
        }
        let sibling = read_only_sibling(socket);
        if sibling == socket {
            return Err(Error::new(Kind::Invalid, "the control socket cannot be named ro.sock")
                .hint("that is the name of the read-only one beside it"));
        }
        let admin = listen(socket, ADMIN_MODE, groups.admin)?;
        files.sockets.push(socket.to_owned());
        let read_mode = if groups.view.is_none() { READ_MODE } else { ADMIN_MODE };
        let read = listen(&sibling, read_mode, groups.view)?;
        files.sockets.push(sibling);
        Ok(Self { admin, read, files, groups })
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.sockets.iter().for_each(|path| remove(path));
        if let Some(directory) = &self.directory {
            // Not if something else is in it, or it is not there.
            let _ = std::fs::remove_dir(directory);
        }
    }
}

/// Removes the sockets of a daemon that no longer runs, and their directory if
/// nothing else is in it.
pub fn remove_stale(socket: &Path) {
    for path in [socket, &read_only_sibling(socket)] {
        if is_stale(path) {
            remove(path);
        }
    }
    // Its directory goes with it.
    drop(Files { sockets: Vec::new(), directory: own_directory(socket) });
}

/// The directory of a socket, if by its name it is for nothing else.
fn own_directory(socket: &Path) -> Option<PathBuf> {
    socket.parent().filter(|directory| directory.ends_with("limiterd")).map(Path::to_owned)
}

/// Whether a path is a socket at which nobody listens.
fn is_stale(path: &Path) -> bool {
    let socket = path.symlink_metadata().is_ok_and(|facts| facts.file_type().is_socket());
    let refused = |error: std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
    socket && UnixStream::connect(path).is_err_and(refused)
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!("cannot remove {}: {error}", path.display());
    }
}

fn listen(path: &Path, mode: u32, group: Option<u32>) -> Result<UnixListener> {
    if is_stale(path) {
        remove(path);
    } else if UnixStream::connect(path).is_ok() {
        return Err(Error::failed(format!("another limiterd answers at {}", path.display()))
            .hint("stop it first, or give this one its own --socket"));
    } else if path.symlink_metadata().is_ok() {
        return Err(Error::failed(format!("{} is there and is no socket", path.display()))
            .hint("name another place with --socket"));
    }
    // Made with no permission for others, then opened to those who may use it:
    // at no moment is it open to more.
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = listener.map_err(|error| failed(path, &error))?;
    if group.is_some() {
        std::os::unix::fs::chown(path, None, group).map_err(|error| failed(path, &error))?;
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(|error| failed(path, &error))?;
    Ok(listener)
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    let kind = match error.kind() {
        ErrorKind::PermissionDenied => Kind::Permission,
        _ => Kind::Failed,
    };
    Error::new(kind, format!("cannot make the control socket {}: {error}", path.display()))
        .hint("name another place with --socket")
}
