//! Who may ask for what: by the credentials that the kernel gives of whoever is
//! at the other end of a socket.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use tokio::net::{UnixStream, unix::UCred};

use crate::error::{Error, Kind, Result};

/// Who is at the other end, as of when he connected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// User.
    pub uid: Option<u32>,
    /// Process.
    pub pid: Option<i32>,
    /// Groups, primary and supplementary.
    pub groups: Vec<u32>,
}

/// The groups that may do more than others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// Whose members may change.
    pub admin: Option<u32>,
    /// Whose members may read; everybody, if there is none.
    pub view: Option<u32>,
}

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Nothing.
    Stranger,
    /// Read.
    Viewer,
    /// Read and change.
    Admin,
}

impl Peer {
    /// Who is at the other end of a connection; nobody known if the kernel does
    /// not say.
    #[must_use]
    pub fn of(stream: &UnixStream) -> Self {
        let credentials = stream.peer_cred().ok();
        let mut groups = supplementary_groups(stream);
        groups.extend(credentials.as_ref().map(UCred::gid));
        Self {
            uid: credentials.as_ref().map(UCred::uid),
            pid: credentials.as_ref().and_then(UCred::pid),
            groups,
        }
    }

    /// What he may do where `own` is the user of the daemon.
    #[must_use]
    pub fn role(&self, groups: Groups, own: u32) -> Role {
        let is_in = |group: Option<u32>| group.is_some_and(|group| self.groups.contains(&group));
        if self.uid == Some(0) || self.uid == Some(own) || is_in(groups.admin) {
            Role::Admin
        } else if self.uid.is_some() && (groups.view.is_none() || is_in(groups.view)) {
            Role::Viewer
        } else {
            Role::Stranger
        }
    }
}

impl Groups {
    /// Groups by their names or numbers.
    ///
    /// # Errors
    /// There is no such group.
    pub fn named(admin: Option<&str>, view: Option<&str>) -> Result<Self> {
        Ok(Self { admin: admin.map(group).transpose()?, view: view.map(group).transpose()? })
    }
}

fn group(name: &str) -> Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let found = nix::unistd::Group::from_name(name).ok().flatten();
    found.map(|group| group.gid.as_raw()).ok_or_else(|| {
        Error::new(Kind::NotFound, format!("there is no group '{name}'"))
            .hint(format!("make it: groupadd --system {name}"))
    })
}

/// Groups that the peer had when it connected, the primary one apart.
fn supplementary_groups(stream: &UnixStream) -> Vec<u32> {
    // include/uapi/asm-generic/socket.h, since Linux 4.13.
    const SO_PEERGROUPS: libc::c_int = 59;
    // NGROUPS_MAX of include/uapi/linux/limits.h.
    const MOST: usize = 65_536;
    // SAFETY: open as long as the stream is borrowed.
    let socket = unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) };
    let mut groups = vec![0u32; 64];
    loop {
        let room = groups.len() * size_of::<u32>();
        let mut length = libc::socklen_t::try_from(room).unwrap_or_default();
        // SAFETY: so many bytes are writable, and the kernel writes no more.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = length as usize / size_of::<u32>();
        if result == 0 {
            groups.truncate(count);
            return groups;
        }
        // Too short: the kernel says how many there are.
        if count <= groups.len() || count > MOST {
            return Vec::new();
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_follow_user_and_groups() {
        let (admin, view, own) = (Some(100), Some(200), 900);
        let peer = |uid, groups: &[u32]| Peer { uid, pid: None, groups: groups.to_vec() };
        for (uid, groups, with, without) in [
            (Some(0), &[][..], Role::Admin, Role::Admin),
            (Some(900), &[], Role::Admin, Role::Admin),
            (Some(7), &[5, 100], Role::Admin, Role::Viewer),
            (Some(7), &[200], Role::Viewer, Role::Viewer),
            (Some(7), &[5], Role::Stranger, Role::Viewer),
            (None, &[], Role::Stranger, Role::Stranger),
        ] {
            assert_eq!(
                peer(uid, groups).role(Groups { admin, view }, own),
                with,
                "{uid:?} {groups:?}"
            );
            assert_eq!(
                peer(uid, groups).role(Groups::default(), own),
                without,
                "{uid:?} {groups:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_peer_has_the_groups_of_its_process() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = Peer::of(&ours);
        assert_eq!(peer.uid, Some(nix::unistd::geteuid().as_raw()));
        assert!(peer.groups.contains(&nix::unistd::getegid().as_raw()));
    }

    #[test]
    fn groups_have_names_or_numbers() {
        assert_eq!(group("0").unwrap(), 0);
        assert_eq!(group("root").unwrap(), 0);
        assert_eq!(group("no-such-group").unwrap_err().kind, Kind::NotFound);
    }
}
