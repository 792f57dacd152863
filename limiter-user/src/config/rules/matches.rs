//! Rules on what a policy matches.

use super::Rules;
use crate::config::{
    Match, PortRange, Protocol,
    nearest::mend,
    traffic::{Traffic, has_ports},
};

/// A host owns a whole prefix of this length.
const IPV6_HOST: u8 = 64;

impl Rules<'_> {
    /// `place` is that of the policy.
    pub(super) fn matches(&mut self, place: &str, matches: &Match) {
        self.contradictions(place, matches);
        self.ports(place, &matches.ports);
        self.match_interfaces(place, matches);
        for (index, prefix) in matches.sources.iter().enumerate() {
            if prefix.address().is_ipv6() && prefix.length() > IPV6_HOST {
                self.warning(
                    self.tree.value(&format!("{place}.match.sources.{index}")),
                    format!("{prefix} is only a part of one host"),
                    "a host owns a /64 and can send from each address in it; write the /64",
                );
            }
        }
    }

    /// Kinds and protocols that the other keys leave nothing of.
    fn contradictions(&mut self, place: &str, matches: &Match) {
        let traffic = Traffic::new(matches);
        let before = self.findings.len();
        let ports_exclude = |of: &str| {
            let message = format!("{of} has no ports that `ports` could match");
            (message, "`ports` goes with TCP and UDP; make two policies of it")
        };
        for (index, kind) in matches.kind.iter().enumerate() {
            if traffic.takes_kind(*kind) {
                continue;
            }
            let (message, hint) = if !matches.ports.is_empty() && !has_ports(*kind) {
                ports_exclude(&format!("the kind '{}'", kind.name()))
            } else {
                let protocols = listed(matches.proto.iter());
                let message = format!("no packet of kind '{}' has proto {protocols}", kind.name());
                (message, "remove one of the two; `kind` alone is enough")
            };
            self.error(self.tree.value(&format!("{place}.match.kind.{index}")), message, hint);
        }
        if self.findings.len() > before {
            // The same contradiction, seen from the other side.
            return;
        }
        for (index, protocol) in matches.proto.iter().enumerate() {
            if traffic.takes_protocol(*protocol) {
                continue;
            }
            let has_ports = [Protocol::TCP, Protocol::UDP].contains(protocol);
            let (message, hint) = if !matches.ports.is_empty() && !has_ports {
                ports_exclude(&format!("the protocol '{protocol}'"))
            } else {
                let kinds = listed(matches.kind.iter().map(|kind| kind.name()));
                let message = format!("no packet of kind {kinds} has proto '{protocol}'");
                (message, "remove one of the two; `kind` alone is enough")
            };
            self.error(self.tree.value(&format!("{place}.match.proto.{index}")), message, hint);
        }
    }

    fn ports(&mut self, place: &str, ports: &[PortRange]) {
        for (index, range) in ports.iter().enumerate() {
            let overlaps =
                |other: &&PortRange| range.first <= other.last && other.first <= range.last;
            let Some(other) = ports[..index].iter().find(overlaps) else { continue };
            self.warning(
                self.tree.value(&format!("{place}.match.ports.{index}")),
                format!("the ports {range} and {other} overlap"),
                "name each port once",
            );
        }
    }

    fn match_interfaces(&mut self, place: &str, matches: &Match) {
        let protected = &self.config.daemon.interfaces;
        for (index, name) in matches.interfaces.iter().enumerate() {
            if protected.is_empty() || protected.contains(name) {
                continue;
            }
            let names = protected.iter().map(String::as_str);
            let hint = mend(name, names, '"', "`interfaces` in [daemon] names");
            let message = format!("the interface '{name}' is not protected");
            self.error(
                self.tree.value(&format!("{place}.match.interfaces.{index}")),
                message,
                hint,
            );
        }
    }
}

fn listed(names: impl Iterator<Item: std::fmt::Display>) -> String {
    let names: Vec<_> = names.map(|name| format!("'{name}'")).collect();
    names.join(" or ")
}
