//! Other tools that drop packets by their source, as Debian ships them.

use aya::programs::{ProgramFd, ProgramInfo, loaded_programs};

use crate::{front::Front, host::Host};

/// The interface at which they stand.
pub const IFACE: &str = "eth0";
/// One packet per second and source, 10 at once: the limit of every peer.
const BURST: u32 = 10;
/// Sources that every table has room for.
const SOURCES: u32 = 262_144;

/// A host with an interface that receives what a live run hands to it.
pub struct Receiver {
    host: Host,
    /// Index of [`IFACE`].
    pub index: u32,
}

/// A filter of the kernel's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// nftables at the ingress of the interface: its earliest hook.
    Nftables,
    /// iptables with hashlimit in the raw table: its earliest hook.
    Iptables,
}

impl Receiver {
    /// The host. Its interface has an XDP program that passes everything: only
    /// then has it what a live run needs.
    ///
    /// # Panics
    /// Without root.
    #[must_use]
    pub fn new() -> Self {
        let (host, far) = (Host::new(), Host::new());
        far.connect("far", &host, IFACE);
        // What the frames are sent to; others are dropped before any filter of IP.
        host.ip("link set eth0 address 02:00:00:00:00:01");
        host.ip("addr add 198.18.0.254/24 dev eth0");
        host.ip("addr add 2001:db8:ffff::1/64 dev eth0 nodad");
        let index = host.call(|| {
            std::fs::read_to_string("/sys/class/net/eth0/ifindex").expect("the interface")
        });
        // The other end must live as long: it does, as part of the pair.
        std::mem::forget(far);
        Self { host, index: index.trim().parse().expect("a number") }
    }

    /// Attaches the program that passes everything, for as long as the front
    /// lives.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn pass_everything(&self, mut front: Front) -> Front {
        let index = self.index;
        self.host.call(move || {
            let mode = aya::programs::xdp::XdpMode::Driver;
            let program = front.program("bare_pass");
            program.attach_to_if_index(index, mode).expect("attaching to a veth");
            front
        })
    }

    /// Calls a function on the host.
    pub fn call<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        self.host.call(work)
    }

    /// Puts the filter in place: one limit for every source, and everything
    /// else dropped behind it, so that no other part of the stack is measured.
    ///
    /// # Panics
    /// If the tool is missing or refuses.
    pub fn put(&self, filter: Filter) {
        match filter {
            Filter::Nftables => {
                let table = format!(
                    "table netdev peer {{
                        set four {{ type ipv4_addr; flags dynamic; size {SOURCES}; timeout 60s; }}
                        set six {{ type ipv6_addr; flags dynamic; size {SOURCES}; timeout 60s; }}
                        chain ingress {{
                            type filter hook ingress device \"{IFACE}\" priority -500;
                            policy drop;
                            update @four {{ ip saddr limit rate over 1/second burst {BURST} packets }} drop
                            update @six {{ ip6 saddr limit rate over 1/second burst {BURST} packets }} drop
                        }}
                    }}"
                );
                self.feed("nft -f -", &table);
            }
            Filter::Iptables => {
                for tool in ["iptables", "ip6tables"] {
                    self.host.run(&format!(
                        "{tool} -t raw -A PREROUTING -m hashlimit --hashlimit-name peer \
                         --hashlimit-mode srcip --hashlimit-above 1/sec --hashlimit-burst {BURST} \
                         --hashlimit-htable-size {SOURCES} --hashlimit-htable-max {SOURCES} -j DROP"
                    ));
                    self.host.run(&format!("{tool} -t raw -P PREROUTING DROP"));
                }
            }
        }
    }

    /// Takes the filter away.
    ///
    /// # Panics
    /// If the tool refuses.
    pub fn remove(&self, filter: Filter) {
        match filter {
            Filter::Nftables => {
                self.host.run("nft delete table netdev peer");
            }
            Filter::Iptables => {
                for tool in ["iptables", "ip6tables"] {
                    self.host.run(&format!("{tool} -t raw -P PREROUTING ACCEPT"));
                    self.host.run(&format!("{tool} -t raw -F PREROUTING"));
                }
            }
        }
    }

    fn feed(&self, line: &str, text: &str) {
        use std::io::Write as _;
        let mut words = line.split_whitespace();
        let mut command = self.host.command(words.next().expect("a program"));
        command.args(words).stdin(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{line}: {error}"));
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(text.as_bytes()).expect("writing to it");
        drop(stdin);
        assert!(child.wait().expect("its end").success(), "{line} refused:\n{text}");
    }
}

impl Default for Receiver {
    fn default() -> Self {
        Self::new()
    }
}

/// xdp-filter with one source of each family on its list, loaded on a host of its own, which
/// must be kept.
pub struct XdpFilter {
    _host: Host,
    /// Its program.
    pub program: ProgramFd,
    /// What the kernel says of it.
    pub info: ProgramInfo,
}

impl XdpFilter {
    /// Loads it.
    ///
    /// # Panics
    /// If the tool is missing or refuses.
    #[must_use]
    pub fn load() -> Self {
        let (host, far) = (Host::new(), Host::new());
        far.connect("far", &host, IFACE);
        let tool = |line: &str| {
            let mut command = host.command("xdp-filter");
            // Alone, without the program that would call several in turn.
            command.args(line.split_whitespace()).env("LIBXDP_SKIP_DISPATCHER", "1");
            let output = command.output().expect("xdp-filter");
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "xdp-filter {line}: {error}");
        };
        let before = ids();
        tool(&format!("load --mode skb --policy allow {IFACE}"));
        tool("ip 198.18.0.1 --mode src");
        tool("ip 2001:db8:c612:1::1 --mode src");
        let new = loaded_programs().map(|program| program.expect("a program")).find(|program| {
            !before.contains(&program.id()) && program.name_as_str().is_some_and(is_filter)
        });
        let info = new.expect("xdp-filter's program");
        Self { _host: host, program: info.fd().expect("its descriptor"), info }
    }
}

fn is_filter(name: &str) -> bool {
    name.starts_with("xdpfilt")
}

fn ids() -> Vec<u32> {
    loaded_programs().map(|program| program.expect("a program").id()).collect()
}
