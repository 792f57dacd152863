//! What keeps operators from locking themselves out.

use std::{fmt, net::IpAddr, str::FromStr};

use limiter_common::{lists::Listing, verdict::Reason, verdict::Verdict};

use super::Service;
use crate::{
    compiled::Compiled,
    error::{Error, Kind, Result},
    frames,
    machine::Machine,
    plane,
    policies::Policies,
    prefix::Prefix,
};

/// An operator's own connection, as his client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Where he comes from.
    pub address: IpAddr,
    /// The address of this host that he is connected to, of the same family.
    pub server: IpAddr,
    /// And the port.
    pub port: u16,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.address, self.server, self.port)
    }
}

impl FromStr for Caller {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut words = text.split(' ');
        let mut address = || words.next()?.parse::<IpAddr>().ok().map(|it| it.to_canonical());
        let addresses = address().zip(address());
        let port = words.next().and_then(|port| port.parse().ok());
        let caller = addresses.zip(port).filter(|((address, server), _)| {
            address.is_ipv4() == server.is_ipv4() && words.next().is_none()
        });
        let caller = caller.map(|((address, server), port)| Self { address, server, port });
        caller.ok_or_else(|| {
            Error::new(Kind::Invalid, format!("'{text}' is no connection of a caller"))
                .hint("write his address, this host's and its port, such as 192.0.2.7 192.0.2.1 22")
        })
    }
}

/// A session at a terminal: so many packets at once when somebody scrolls, and
/// then so many each second, for so long.
const SESSION_BURST: u32 = 20;
const SESSION_RATE: u64 = 5;
const SESSION_SECONDS: u64 = 60;
const SSH: u16 = 22;
const SECOND_NS: u64 = 1_000_000_000;

impl Service {
    /// Refuses policies under which the caller's session, or one from the
    /// management prefixes, would lose packets.
    pub(super) fn guard_policies(
        &self,
        policies: &Policies,
        compiled: &Compiled,
        caller: Option<Caller>,
    ) -> Result<()> {
        let config = policies.config();
        let all = |prefix: &Prefix| prefix.length() == 0;
        if let Some(entry) = config.deny.iter().find(|entry| all(&entry.prefix)) {
            return Err(guarded(format!("{} would deny everybody", entry.prefix)));
        }
        if policies.observes() {
            return Ok(());
        }
        for (session, whose) in self.sessions(&config.daemon.management, caller) {
            let said = self.said_about(session.address, Some(compiled));
            match said.reason(0, &BootClock) {
                Some(Reason::Allowed) => continue,
                Some(reason) => return Err(locked_out(whose, session, reason.name())),
                None => {}
            }
            if let Some((reason, row)) = first_drop(
                compiled,
                self.plane.sizing().cpus,
                session,
                self.interface_of(session.server),
            ) {
                let mut numbers = self.in_force.numbers.clone();
                let _ = numbers.assign(policies.names());
                let policy = policies.names().find(|name| numbers.row(name) == Some(row));
                let why = format!("{} of policy '{}'", reason.name(), policy.unwrap_or("?"));
                return Err(locked_out(whose, session, &why));
            }
        }
        for entry in &config.deny {
            self.guard_management(entry.prefix, &config.daemon.management, "deny")?;
        }
        Ok(())
    }

    /// Refuses bans of the caller, of management prefixes, of this host and of
    /// everybody.
    pub(super) fn guard_bans(&self, prefixes: &[Prefix], caller: Option<Caller>) -> Result<()> {
        let management = &self.in_force.policies.config().daemon.management;
        let own = own_addresses();
        for prefix in prefixes {
            if prefix.length() == 0 {
                return Err(guarded(format!("{prefix} would ban everybody")));
            }
            let hit = own.iter().find(|(_, address)| prefix.contains_address(*address));
            if let Some((_, address)) = hit {
                return Err(guarded(format!("{prefix} holds {address}, an address of this host")));
            }
            if let Some(caller) = caller
                && prefix.contains_address(caller.address)
                && self.said_about(caller.address, None).reason(self.plane.live().slot, &BootClock)
                    != Some(Reason::Allowed)
            {
                return Err(locked_out("your own connection", caller, "banned"));
            }
            self.guard_management(*prefix, management, "ban")?;
        }
        Ok(())
    }

    fn guard_management(&self, prefix: Prefix, management: &[Prefix], verb: &str) -> Result<()> {
        let hit = management.iter().find(|it| it.overlaps(&prefix) && !self.is_allowed(**it));
        hit.map_or(Ok(()), |management| {
            Err(guarded(format!(
                "to {verb} {prefix} would lock out {management}, a management prefix"
            )))
        })
    }

    /// Whether all of a prefix is allowed, whatever is banned in it.
    pub(super) fn is_allowed(&self, prefix: Prefix) -> bool {
        let around = self.plane.around(prefix).into_iter();
        let said = around.fold(Listing::default(), |sum, (_, listing)| sum.and(listing));
        said.reason(self.plane.live().slot, &BootClock) == Some(Reason::Allowed)
    }

    /// What the lists would say about an address; with these rules in slot 0,
    /// or as they are.
    fn said_about(&self, address: IpAddr, rules: Option<&Compiled>) -> Listing {
        let address = Prefix::from(address);
        let around = self.plane.around(address).into_iter();
        let now = around.fold(Listing::default(), |sum, (_, listing)| sum.and(listing));
        let Some(rules) = rules else {
            return now;
        };
        let mut said = rules.configured.iter().filter(|(prefix, _)| prefix.contains(&address));
        let allow = said.clone().any(|(_, said)| said.allow);
        let deny = said.any(|(_, said)| said.deny);
        now.with_configured(0, allow, deny).with_configured(1, false, false)
    }

    /// The sessions that must go on, and whose they are.
    fn sessions(
        &self,
        management: &[Prefix],
        caller: Option<Caller>,
    ) -> Vec<(Caller, &'static str)> {
        let own = own_addresses();
        let of_prefix = |prefix: &Prefix| {
            let address = first_host(*prefix);
            let like = |(_, own): &&(String, IpAddr)| {
                own.is_ipv4() == address.is_ipv4() && !own.is_loopback()
            };
            let server = own.iter().find(like).map_or(frames::nobody(address), |(_, own)| *own);
            Caller { address, server, port: SSH }
        };
        let caller = caller.map(|caller| (caller, "your own connection"));
        let management = management.iter().map(|it| (of_prefix(it), "a management prefix"));
        caller.into_iter().chain(management).collect()
    }
}

impl Service {
    /// Number of the interface that has an address of this host; the first, if
    /// it is none of those that are protected.
    fn interface_of(&self, address: IpAddr) -> u32 {
        let own = own_addresses();
        let name = own.iter().find(|(_, own)| *own == address).map(|(name, _)| name.as_str());
        let at = self.plane.names().position(|interface| interface.is_some() && interface == name);
        at.and_then(|at| u32::try_from(at).ok()).unwrap_or_default()
    }
}

/// The time that the lists end by.
pub(super) struct BootClock;

impl limiter_common::bucket::Clock for BootClock {
    fn now_ns(&self) -> u64 {
        plane::boot_ns()
    }

    fn tick(&self) -> u64 {
        0
    }

    fn coarse_ns(&self) -> u64 {
        plane::boot_ns()
    }

    fn boot_ns(&self) -> u64 {
        plane::boot_ns()
    }
}

/// The first packet of a session that these rules would drop, by its reason and
/// the row of its policy.
fn first_drop(
    compiled: &Compiled,
    cpus: u32,
    session: Caller,
    interface: u32,
) -> Option<(Reason, u32)> {
    const ROOM: usize = 1024;
    // The lists were asked already.
    let mut machine = Machine::new(cpus, ROOM, compiled.clone());
    machine.set_interface(interface);
    let [opening, going_on] = frames::session(session.address, session.server, session.port);
    let burst = (0..SESSION_BURST).map(|_| (0, &going_on));
    let later =
        (1..=SESSION_RATE * SESSION_SECONDS).map(|n| (n * SECOND_NS / SESSION_RATE, &going_on));
    let packets = std::iter::once((0, &opening)).chain(burst).chain(later);
    // Long after the boot: no clock starts at zero.
    let start = 1000 * SECOND_NS;
    let mut decisions = packets.map(|(at, frame)| machine.receive(0, start + at, frame));
    decisions
        .find(|decision| decision.verdict == Verdict::Drop)
        .map(|decision| (decision.reason, decision.policy))
}

/// An address that a host of the prefix may have.
fn first_host(prefix: Prefix) -> IpAddr {
    match prefix.address() {
        _ if prefix.is_single() => prefix.address(),
        IpAddr::V4(address) => IpAddr::V4((u32::from(address) | 1).into()),
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) | 1).into()),
    }
}

/// Addresses of this host, each with its interface; none if the kernel does not
/// say.
fn own_addresses() -> Vec<(String, IpAddr)> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    interfaces.into_iter().map(|interface| (interface.name.clone(), interface.ip())).collect()
}

fn locked_out(whose: &str, session: Caller, why: &str) -> Error {
    guarded(format!(
        "this would cut off {whose}, from {} to port {}: {why}",
        session.address, session.port
    ))
}

fn guarded(message: String) -> Error {
    Error::new(Kind::Guarded, message).hint("allow it first, or insist with --force")
}
