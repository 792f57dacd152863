//! Where the operator is connected from.

use std::fs;

use limiter_user::service::Caller;

/// Shells, sudo and screens between this process and the one of the session.
const MOST_PARENTS: usize = 32;

/// The SSH connection that this command was typed over, if it was: sudo takes
/// its variables away, so those of the processes above are asked too.
pub(crate) fn find() -> Option<Caller> {
    let own = std::env::var("SSH_CONNECTION").ok();
    if let Some(caller) = own.as_deref().and_then(parse) {
        return Some(caller);
    }
    let mut pid = std::os::unix::process::parent_id();
    for _ in 0..MOST_PARENTS {
        if pid <= 1 {
            return None;
        }
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let variables = environment.split(|byte| *byte == 0);
        let found = variables
            .filter_map(|variable| variable.strip_prefix(b"SSH_CONNECTION="))
            .find_map(|value| parse(std::str::from_utf8(value).ok()?));
        if found.is_some() {
            return found;
        }
        pid = parent_of(pid)?;
    }
    None
}

/// Client address, client port, server address, server port (ssh(1)).
fn parse(connection: &str) -> Option<Caller> {
    let words: Vec<_> = connection.split(' ').collect();
    let [address, _, server, port] = words[..] else {
        return None;
    };
    // The address of a link may name its interface.
    let [address, server] = [address, server].map(|text| text.split('%').next());
    format!("{} {} {port}", address?, server?).parse().ok()
}

fn parent_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_as_ssh_states_them() {
        for (text, caller) in [
            ("198.51.100.7 51234 192.0.2.1 22", "198.51.100.7 192.0.2.1 22"),
            ("fe80::1%eth0 51234 fe80::2%eth0 2222", "fe80::1 fe80::2 2222"),
            ("::ffff:198.51.100.7 51234 ::ffff:192.0.2.1 22", "198.51.100.7 192.0.2.1 22"),
        ] {
            assert_eq!(parse(text).map(|it| it.to_string()).as_deref(), Some(caller));
        }
        for text in ["", "198.51.100.7", "a b c d", "198.51.100.7 1 2 3 4", "::1 5 192.0.2.1 22"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
