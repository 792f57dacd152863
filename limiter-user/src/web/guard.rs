//! Which requests are answered at all, and what every answer says to browsers.

use std::net::IpAddr;

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tokio::net::TcpStream;

/// What any name may be asked of where the address is open to the network:
/// there are no addresses of others in it.
const HARMLESS: [&str; 3] = ["/metrics", "/livez", "/readyz"];

/// Said by every answer that does not say it otherwise.
const HEADERS: [(header::HeaderName, &str); 5] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
];

/// How a connection came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// To an address that only this host can reach.
    is_local: bool,
}

impl Arrival {
    pub(super) fn of(stream: &TcpStream) -> Self {
        let address = stream.local_addr().map(|address| address.ip().to_canonical());
        Self { is_local: address.is_ok_and(|address| address.is_loopback()) }
    }
}

/// Refuses what is not answered.
pub(super) async fn guard(request: Request, next: Next) -> Response {
    let arrival = request.extensions().get::<Arrival>().copied();
    let is_open = arrival.is_some_and(|arrival| !arrival.is_local);
    let mut response = if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let allow = [(header::ALLOW, "GET, HEAD")];
        (StatusCode::METHOD_NOT_ALLOWED, allow, "this is for reading only\n").into_response()
    } else if !(is_open && HARMLESS.contains(&request.uri().path())
        || is_trusted(request.headers()))
    {
        let why = "ask by an IP address or as localhost: under another name, a foreign web site \
                   could ask through your browser\n";
        (StatusCode::BAD_REQUEST, why).into_response()
    } else {
        next.run(request).await
    };
    for (name, value) in HEADERS {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Whether the host is asked for by a name that nobody else can give it. A
/// request without a host comes from no browser.
fn is_trusted(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    hosts.all(|host| host.to_str().is_ok_and(is_own_name))
}

fn is_own_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    name.eq_ignore_ascii_case("localhost") || bare.unwrap_or(name).parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_localhost_are_own_names() {
        for own in
            ["localhost", "LocalHost:9898", "127.0.0.1", "192.0.2.1:80", "[::1]:9898", "[::1]"]
        {
            assert!(is_own_name(own), "{own}");
        }
        for foreign in [
            "",
            ":9898",
            "example.org",
            "example.org:9898",
            "localhost.example.org",
            "127.0.0.1.nip.io:9898",
            "[::1].example.org",
            "1.2.3",
            "localhost:9898:x",
        ] {
            assert!(!is_own_name(foreign), "{foreign}");
        }
    }
}
