//! Requests over HTTP, as they are sent on the wire.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use crate::host::Host;

/// Where the daemon serves metrics unless it is told otherwise.
pub const METRICS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9898);
const PATIENCE: Duration = Duration::from_secs(10);

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Such as 200.
    pub status: u16,
    /// All lines before the body.
    pub head: String,
    /// The rest.
    pub body: String,
}

/// Asks for a path at an address of a host.
///
/// # Panics
/// If there is no answer that can be read.
#[must_use]
pub fn get(host: &Host, address: SocketAddr, path: &str) -> Answer {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    send(host, address, &request).unwrap_or_else(|error| panic!("{address}{path}: {error}"))
}

/// Sends a request as it is and reads the answer until the other side closes.
///
/// # Errors
/// There is no connection, or no answer that can be read.
pub fn send(host: &Host, address: SocketAddr, request: &str) -> io::Result<Answer> {
    let request = request.to_owned();
    host.call(move || {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Answer { status, head: head.into(), body: body.into() })
    })
}
