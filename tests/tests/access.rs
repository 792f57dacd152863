//! Who may ask what at which socket: every call, by everybody.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    time::Duration,
};

use limiter_tests::{daemon::Daemon, host::Host, net::IFACE};
use rustix::process::{Gid, Uid};

const ADMINS: u32 = 5001;
const VIEWERS: u32 = 5002;
const OTHERS: u32 = 5003;
const USER: u32 = 6001;

/// Somebody: user, primary and supplementary groups.
#[derive(Clone, Copy, Debug)]
struct Who(u32, u32, &'static [u32]);

const ROOT: Who = Who(0, 0, &[]);
const ADMIN: Who = Who(USER, ADMINS, &[]);
const ADMIN_TOO: Who = Who(USER, OTHERS, &[OTHERS, ADMINS]);
const VIEWER: Who = Who(USER, VIEWERS, &[]);
const VIEWER_TOO: Who = Who(USER, OTHERS, &[VIEWERS]);
const STRANGER: Who = Who(USER, OTHERS, &[OTHERS]);
const EVERYBODY: [Who; 6] = [ROOT, ADMIN, ADMIN_TOO, VIEWER, VIEWER_TOO, STRANGER];

/// Asks as somebody; status and body of the answer, or none without a
/// connection.
fn ask(
    host: &Host,
    who: Who,
    socket: &'static str,
    method: &str,
    path: &str,
) -> Option<(u16, String)> {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: limiterd\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    // Credentials are those of a thread, which ends with the call.
    host.call(move || {
        let Who(user, group, groups) = who;
        let groups: Vec<_> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
        rustix::thread::set_thread_groups(&groups).expect("groups");
        rustix::thread::set_thread_gid(Gid::from_raw(group)).expect("a group");
        rustix::thread::set_thread_uid(Uid::from_raw(user)).expect("a user");
        let mut stream = UnixStream::connect(socket).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        stream.write_all(request.as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    })
}

/// Every call that the daemon says it has, and whether it changes something.
fn calls(host: &Host) -> Vec<(String, String, bool)> {
    let answer = ask(host, ROOT, "/run/limiterd/ro.sock", "GET", "/v1/openapi.json");
    let (_, text) = answer.expect("an answer");
    let document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let paths = document["paths"].as_object().expect("paths");
    let mut calls = Vec::new();
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().expect("operations") {
            let changes = operation["description"].as_str().expect("a description");
            let path = path.replace("{policy}", "udp");
            let path =
                if path == "/v1/explain" { format!("{path}?source=192.0.2.1") } else { path };
            calls.push((method.to_uppercase(), path, changes.contains("control socket only")));
        }
    }
    // The last, for the daemon then ends.
    calls.sort_by_key(|(_, path, _)| path == "/v1/detach");
    calls
}

#[test]
fn each_call_is_answered_to_those_who_may_ask_it() {
    let (host, other) = (Host::new(), Host::new());
    host.connect(IFACE, &other, IFACE);
    let text = format!(
        "[daemon]\ninterfaces = \"{IFACE}\"\nadmin_group = \"{ADMINS}\"\nview_group = \"{VIEWERS}\"\n\
         [[policy]]\nname = \"udp\"\nrate = 5\n"
    );
    host.call(move || std::fs::write("/run/limiterd.toml", text)).expect("a file");
    let daemon = Daemon::start(&host, "--config /run/limiterd.toml");
    let (control, read) = ("/run/limiterd/ctl.sock", "/run/limiterd/ro.sock");
    let calls = calls(&host);
    assert!(calls.len() >= 20 && calls.iter().any(|(_, path, _)| path == "/v1/bans"));

    // The sockets themselves let only their groups in.
    let may_connect = |who, socket| ask(&host, who, socket, "GET", "/v1/status").is_some();
    for who in EVERYBODY {
        let is_root = who.0 == 0;
        let is_in = |group| who.1 == group || who.2.contains(&group);
        assert_eq!(may_connect(who, control), is_root || is_in(ADMINS), "{who:?}");
        assert_eq!(may_connect(who, read), is_root || is_in(VIEWERS), "{who:?}");
    }
    // And where their permissions are lost, credentials still count.
    let _ = host.run(&format!("chmod 666 {control} {read}"));
    for (method, path, changes) in &calls {
        for who in EVERYBODY.into_iter().rev() {
            let is_root = who.0 == 0;
            let is_admin = is_root || who.1 == ADMINS || who.2.contains(&ADMINS);
            let is_viewer = is_admin || who.1 == VIEWERS || who.2.contains(&VIEWERS);
            // Only one can take the protection off.
            if path == "/v1/detach" && is_admin && !is_root {
                continue;
            }
            let allowed = |answer: &Option<(u16, String)>| {
                answer.as_ref().is_some_and(|(status, _)| *status != 403)
            };
            let call = format!("{who:?} {method} {path}");
            let at_read = ask(&host, who, read, method, path);
            assert_eq!(allowed(&at_read), is_viewer && !changes, "{call} to read: {at_read:?}");
            let at_control = ask(&host, who, control, method, path);
            assert_eq!(allowed(&at_control), is_admin, "{call}: {at_control:?}");
            let unknown = at_control.is_some_and(|(_, body)| body.contains("no such call"));
            assert!(!unknown, "{call} is not there");
        }
    }
    assert!(daemon.wait().status.success());
}
