//! The shields that are compared.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use limiter_user::policies::Policies;
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use crate::{daemon::Daemon, goodput::place::SERVER_CPU, host::Host, net::IFACE, sandbox};

/// What protects the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Shield {
    /// Nothing but the kernel itself, SYN cookies included.
    None,
    /// Sets of nftables at the ingress hook, with limits per source address.
    Nftables,
    /// The limiter with its built-in profile.
    Limiterd,
}

impl Shield {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::None, Self::Nftables, Self::Limiterd];

    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "no shield",
            Self::Nftables => "nftables",
            Self::Limiterd => "limiterd",
        }
    }

    /// Puts it up on a host. It is down when the host is gone, and limiterd
    /// ends with what this returns.
    ///
    /// # Panics
    /// If that fails.
    #[must_use]
    pub fn raise(self, host: &Host) -> Option<Daemon> {
        match self {
            Self::None => None,
            Self::Nftables => {
                nft(host, &rules());
                None
            }
            Self::Limiterd => {
                // What it does besides is the server's work, too.
                let everywhere = sched_getaffinity(None).expect("the CPUs of this thread");
                sandbox::pin_to_cpu(SERVER_CPU);
                let daemon = Daemon::start(host, &format!("--iface {IFACE} --xdp-mode native"));
                sched_setaffinity(None, &everywhere).expect("the CPUs from before");
                Some(daemon)
            }
        }
    }
}

/// The same rates and bursts as limiterd's, and as much room for sources.
fn rules() -> String {
    let policies = Policies::builtin(false);
    let mut sets = String::new();
    let mut limits = String::new();
    for (name, set, packets) in [
        ("tcp-syn", "syn_sources", "tcp flags & (syn | ack) == syn"),
        ("udp", "udp_sources", "ip protocol udp"),
    ] {
        let limit = policies.all().iter().find(|limit| limit.name == name);
        let (rate, burst) =
            limit.and_then(|limit| limit.source().packets).expect("a limit of packets");
        let rate = rate.per_second();
        sets +=
            &format!("set {set} {{ type ipv4_addr; flags dynamic; size 262144; timeout 60s; }}\n");
        limits += &format!(
            "{packets} update @{set} {{ ip saddr limit rate over {rate}/second burst {} packets }} \
             drop\n",
            burst.0
        );
    }
    format!(
        "table netdev shield {{\n{sets}chain in {{\n\
         type filter hook ingress device {IFACE} priority -500;\n{limits}}}\n}}\n"
    )
}

/// Loads rules on a host.
///
/// # Panics
/// If nftables does not take them.
pub fn nft(host: &Host, rules: &str) {
    feed(host.command("nft").args(["-f", "-"]), rules);
}

/// Runs a command on some input.
///
/// # Panics
/// If that fails; the message names the program.
pub fn feed(command: &mut Command, input: &str) {
    let program = command.get_program().display().to_string();
    let child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap_or_else(|error| panic!("{program} cannot be started: {error}"));
    let mut pipe = child.stdin.take().expect("its input");
    // If it has ended already, its status tells.
    let _ = pipe.write_all(input.as_bytes());
    drop(pipe);
    let output = child.wait_with_output().expect("waiting");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {}\n{errors}\n{input}", output.status);
}
