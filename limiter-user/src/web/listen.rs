//! The address that is listened on.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
};

use rustix::net::sockopt::{set_ip_freebind, set_ipv6_freebind};
use tokio::net::{TcpListener, TcpSocket};

use crate::error::{Error, Kind, Result};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 128;

/// Listens on an address, also on one that no interface has yet: at a boot, the
/// shield is up before the network. Needs a Tokio runtime.
///
/// # Errors
/// The address is in use, or this process may not use it.
pub fn listen(address: SocketAddr) -> Result<TcpListener> {
    let listener = match bound(address, false) {
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
            tracing::warn!("no interface has the address of the metrics yet: {}", address.ip());
            bound(address, true)
        }
        result => result,
    };
    listener.map_err(|error| failed(address, &error))
}

fn bound(address: SocketAddr, is_absent: bool) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Connections of a daemon before are no hindrance.
    socket.set_reuseaddr(true)?;
    if is_absent && address.is_ipv4() {
        set_ip_freebind(&socket, true)?;
    } else if is_absent {
        set_ipv6_freebind(&socket, true)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn failed(address: SocketAddr, error: &io::Error) -> Error {
    let (kind, what) = match error.kind() {
        ErrorKind::AddrInUse => (Kind::Failed, "another program listens there".to_owned()),
        ErrorKind::PermissionDenied => (Kind::Permission, error.to_string()),
        _ => (Kind::Failed, error.to_string()),
    };
    Error::new(kind, format!("cannot serve metrics on {address}: {what}"))
        .hint("name another address with --metrics, or --metrics off")
}
