//! One interface: what its driver can do, and what is in the way.

use super::{Finding, ethtool::Device, found, netdev::Features};
use crate::{
    api::Level,
    interface::Interface,
    plane::{Mode, PROGRAM},
};

/// Bytes of the largest MTU that fits one page with what XDP adds to it; most
/// drivers refuse native mode beyond.
const ONE_PAGE_MTU: u32 = 3498;

/// All that is known of an interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    /// What netlink says.
    pub(super) link: &'a Interface,
    /// Every interface of this network namespace.
    pub(super) all: &'a [Interface],
    /// What the driver says.
    pub(super) device: &'a Device,
    /// What the driver announces about XDP, if this kernel says.
    pub(super) features: Option<Features>,
    /// CPUs that run, if this is known.
    pub(super) cpus: Option<u32>,
    /// Whether it is to be protected, and not only there.
    pub(super) named: bool,
}

/// The program on an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Program {
    /// Its name, if this user may know.
    pub(super) name: Option<String>,
    /// Whether its link is in the pin directory, if this user may know.
    pub(super) pinned: Option<bool>,
}

impl Facts<'_> {
    /// Everything apart from the program on it.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let findings = [
            Some(self.state()),
            self.header(),
            self.driver(),
            self.mtu(),
            self.queues(),
            self.lro(),
            self.gro(),
            self.part(),
        ];
        findings.into_iter().flatten().collect()
    }

    /// What is worth a word when protection starts; what kept it from native
    /// mode is not if it is in that.
    pub(super) fn warnings(&self, mode: Mode) -> Vec<Finding> {
        let hinders = if mode == Mode::Generic { [self.mtu(), self.lro()] } else { [None, None] };
        let findings = [Some(self.state()), self.header()].into_iter().chain(hinders).flatten();
        findings.filter(|finding| finding.level >= Level::Warning).collect()
    }

    fn found(&self, level: Level, what: &str, fact: impl Into<String>) -> Finding {
        found(level, format!("{} {what}", self.link.name), fact)
    }

    fn state(&self) -> Finding {
        let name = &self.link.name;
        match (self.link.up, self.link.carrier) {
            (true, true) => self.found(Level::Ok, "state", "up"),
            (true, false) => self
                .found(Level::Note, "state", "up, without a carrier")
                .so("nothing arrives until the other end is there"),
            (false, _) => self
                .found(Level::Warning, "state", "down")
                .so("nothing arrives")
                .mend(format!("ip link set dev {name} up")),
        }
    }

    fn header(&self) -> Option<Finding> {
        (!self.link.ethernet).then(|| {
            self.found(Level::Warning, "frames", "they have no Ethernet header")
                .so("limiterd cannot read them, and all of them pass")
                .mend("protect the interface that the tunnelled packets arrive at")
        })
    }

    fn driver(&self) -> Option<Finding> {
        let driver = self.device.driver.as_ref().or(self.link.kind.as_ref());
        let Some(features) = self.features else {
            return driver.map(|driver| self.found(Level::Ok, "driver", driver));
        };
        let name = driver.map(|driver| format!("{driver}, ")).unwrap_or_default();
        if features.native {
            return Some(self.found(Level::Ok, "driver", format!("{name}with native XDP")));
        }
        let finding = self
            .found(Level::Warning, "driver", format!("{name}without native XDP as it is set now"))
            .so("only the generic mode is left, which is several times slower");
        let more = self.device.queues.is_some_and(|queues| queues.most_receive > queues.receive);
        let is_veth = driver.is_some_and(|driver| driver == "veth");
        Some(match self.below() {
            Some(names) => finding.mend(format!("protect what is below it: {names}")),
            // It has native XDP if there is a queue for each of its peer's.
            None if is_veth && more => finding.mend(format!(
                "give it as many receive queues as its peer has transmit queues: ethtool -L {} rx N",
                self.link.name
            )),
            None => finding,
        })
    }

    /// The interfaces that packets arrive at before they arrive here.
    fn below(&self) -> Option<String> {
        let is_below = |other: &&Interface| match self.link.kind.as_deref() {
            Some("bridge" | "bond" | "team") => other.controller == Some(self.link.index),
            Some("vlan" | "macvlan") => self.link.lower == Some(other.index),
            _ => false,
        };
        let names: Vec<_> =
            self.all.iter().filter(is_below).map(|other| other.name.as_str()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    fn mtu(&self) -> Option<Finding> {
        let (name, mtu) = (&self.link.name, self.link.mtu);
        let fact = format!("{mtu} bytes");
        if mtu <= ONE_PAGE_MTU {
            return Some(self.found(Level::Ok, "mtu", fact));
        }
        match self.features {
            // Said already.
            Some(Features { native: false, .. }) => None,
            Some(Features { jumbo: true, .. }) => Some(
                self.found(Level::Note, "mtu", fact)
                    .so("most drivers refuse native XDP on such frames; this one announces it"),
            ),
            _ => Some(
                self.found(Level::Warning, "mtu", fact)
                    .so("most drivers refuse native XDP on such frames, and the generic mode is \
                         several times slower")
                    .mend(format!("ip link set dev {name} mtu {ONE_PAGE_MTU}")),
            ),
        }
    }

    fn queues(&self) -> Option<Finding> {
        let cpus = self.cpus?;
        let (receive, transmit, most) = match self.device.queues {
            Some(queues) => (queues.receive, queues.transmit, Some(queues.most_receive)),
            // Room for them says something only of hardware, and only if even
            // that is too little.
            None if self.features.is_none_or(|features| !features.native) => return None,
            None => match (self.link.rx_queues?, self.link.tx_queues?) {
                (receive, transmit) if receive < cpus => (receive, transmit, None),
                _ => return None,
            },
        };
        let fact = format!("{receive} receive and {transmit} transmit queues for {cpus} CPUs");
        if receive < cpus {
            let kind = if self.device.queues.is_some_and(|queues| queues.combined) {
                "combined"
            } else {
                "rx"
            };
            let finding = self.found(Level::Note, "queues", fact).so(if receive == 1 {
                "one CPU does all the work of a flood".to_owned()
            } else {
                format!("no more than {receive} CPUs share the work of a flood")
            });
            return Some(match most {
                Some(most) if most > receive => {
                    finding.mend(format!("ethtool -L {} {kind} {}", self.link.name, most.min(cpus)))
                }
                _ => finding,
            });
        }
        if transmit < cpus {
            return Some(
                self.found(Level::Note, "queues", fact)
                    .so("some drivers refuse native XDP without a transmit queue for each CPU"),
            );
        }
        Some(self.found(Level::Ok, "queues", fact))
    }

    fn lro(&self) -> Option<Finding> {
        self.device.lro?.then(|| {
            self.found(Level::Warning, "lro", "on")
                .so("most drivers refuse native XDP with it")
                .mend(format!("ethtool -K {} lro off", self.link.name))
        })
    }

    fn gro(&self) -> Option<Finding> {
        if !self.device.gro? {
            return Some(self.found(Level::Ok, "gro", "off"));
        }
        let merged = "in generic mode one counted packet may be many merged ones";
        Some(match self.features {
            Some(Features { native: true, .. }) => {
                self.found(Level::Ok, "gro", "on; native XDP sees packets before it")
            }
            _ => self
                .found(Level::Note, "gro", "on")
                .so(merged)
                .mend(format!("ethtool -K {} gro off, if that matters", self.link.name)),
        })
    }

    fn part(&self) -> Option<Finding> {
        let controller = self.link.controller?;
        let controller = self.all.iter().find(|other| other.index == controller)?;
        let fact = format!("it is part of {}", controller.name);
        Some(
            self.found(Level::Note, "part", fact)
                .so("it is protected as it is; its siblings each need a --iface of their own"),
        )
    }

    /// The program on it, if there is one.
    pub(super) fn program(&self, program: &Program) -> Option<Finding> {
        let number = self.link.program()?;
        let name = &self.link.name;
        let mode = if self.link.native.is_some() {
            "native"
        } else if self.link.generic.is_some() {
            "generic"
        } else {
            "offloaded"
        };
        let called = program.name.as_ref().map(|name| format!(" '{name}'")).unwrap_or_default();
        let fact = format!("an XDP program is on it: number {number}{called}, {mode} mode");
        // Of no interest to whoever protects another interface.
        let level = if self.named { Level::Error } else { Level::Warning };
        let refused = "limiterd refuses to start on it";
        Some(match (&program.name, program.pinned) {
            (_, Some(true)) => self.found(
                Level::Ok,
                "program",
                format!("limiterd's own: number {number}, {mode} mode"),
            ),
            (Some(known), _) if known == PROGRAM => self
                .found(level, "program", format!("{fact}; its pins are elsewhere"))
                .so(refused)
                .mend("limiterd --detach with the --pin-dir that it was started with"),
            (None, None) => self
                .found(Level::Note, "program", fact)
                .so("unless it is limiterd's own, limiterd refuses to start on it")
                .mend("root is told whose it is (sudo)"),
            _ => self
                .found(level, "program", fact)
                .so(refused)
                .mend(format!("remove it first: ip link set dev {name} xdp off")),
        })
    }
}

/// How many CPUs run, from the text of `/sys/devices/system/cpu/online`, such
/// as `0-3,5`.
pub(super) fn online(text: &str) -> Option<u32> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    text.trim().split(',').try_fold(0u32, |sum, text| sum.checked_add(range(text)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::ethtool::Queues;

    const NATIVE: Option<Features> = Some(Features { native: true, jumbo: false });
    const JUMBO: Option<Features> = Some(Features { native: true, jumbo: true });
    const NONE: Option<Features> = Some(Features { native: false, jumbo: false });

    fn link() -> Interface {
        Interface {
            name: "eth0".into(),
            index: 2,
            mtu: 1500,
            up: true,
            carrier: true,
            ethernet: true,
            rx_queues: Some(1),
            tx_queues: Some(1),
            ..Interface::default()
        }
    }

    fn device() -> Device {
        Device {
            driver: Some("virtio_net".into()),
            gro: Some(true),
            lro: Some(false),
            queues: None,
        }
    }

    fn told(facts: Facts<'_>, what: &str) -> Option<(Level, String)> {
        let findings = facts.findings();
        let finding = findings.iter().find(|it| it.subject == format!("eth0 {what}"))?;
        Some((finding.level, finding.to_string()))
    }

    fn facts<'a>(link: &'a Interface, device: &'a Device, features: Option<Features>) -> Facts<'a> {
        Facts { link, all: &[], device, features, cpus: Some(2), named: true }
    }

    /// Checks level and a word of a finding; no word for no finding.
    fn check(facts: Facts<'_>, what: &str, level: Level, word: &str) {
        match told(facts, what) {
            Some((is, text)) => {
                assert_eq!(is, level, "{text}");
                assert!(!word.is_empty() && text.contains(word), "'{word}' is not in {text}");
            }
            None => assert_eq!(word, "", "{what} is not told"),
        }
    }

    #[test]
    fn states_are_told() {
        let device = device();
        for (up, carrier, level, word) in [
            (true, true, Level::Ok, "up"),
            (true, false, Level::Note, "carrier"),
            (false, false, Level::Warning, "ip link set dev eth0 up"),
        ] {
            let link = Interface { up, carrier, ..link() };
            check(facts(&link, &device, NATIVE), "state", level, word);
        }
        let link = Interface { ethernet: false, ..link() };
        check(facts(&link, &device, NONE), "frames", Level::Warning, "Ethernet");
    }

    #[test]
    fn drivers_are_told_with_what_they_announce() {
        let (link, device) = (link(), device());
        check(facts(&link, &device, NATIVE), "driver", Level::Ok, "virtio_net, with native");
        check(facts(&link, &device, NONE), "driver", Level::Warning, "generic");
        check(facts(&link, &device, None), "driver", Level::Ok, "virtio_net");
        let queues = Queues { receive: 1, transmit: 1, most_receive: 2, combined: false };
        let veth = Device { driver: Some("veth".into()), queues: Some(queues), ..device.clone() };
        check(facts(&link, &veth, NONE), "driver", Level::Warning, "ethtool -L eth0 rx N");
        let silent = Device::default();
        check(facts(&link, &silent, None), "driver", Level::Ok, "");
        check(facts(&link, &silent, NONE), "driver", Level::Warning, "without native");
    }

    #[test]
    fn what_is_below_is_named() {
        let port = |index, controller| Interface {
            name: format!("port{index}"),
            index,
            controller: Some(controller),
            ..Interface::default()
        };
        let all = [port(5, 2), port(6, 2), port(7, 9)];
        let device = device();
        let bridge = Interface { kind: Some("bridge".into()), ..link() };
        let with = Facts { all: &all, ..facts(&bridge, &device, NONE) };
        check(with, "driver", Level::Warning, "port5, port6");
        let vlan = Interface { kind: Some("vlan".into()), lower: Some(7), ..link() };
        let with = Facts { all: &all, ..facts(&vlan, &device, NONE) };
        check(with, "driver", Level::Warning, "below it: port7");
        let part = Interface { controller: Some(5), ..link() };
        let with = Facts { all: &all, ..facts(&part, &device, NATIVE) };
        check(with, "part", Level::Note, "part of port5");
    }

    #[test]
    fn large_frames_are_told() {
        let device = device();
        for (mtu, features, level, word) in [
            (1500, NATIVE, Level::Ok, "1500"),
            (3498, None, Level::Ok, "3498"),
            (3499, NATIVE, Level::Warning, "mtu 3498"),
            (9000, None, Level::Warning, "mtu 3498"),
            (9000, JUMBO, Level::Note, "announces"),
            (9000, NONE, Level::Note, ""),
        ] {
            let link = Interface { mtu, ..link() };
            check(facts(&link, &device, features), "mtu", level, word);
        }
    }

    #[test]
    fn queues_are_counted_against_cpus() {
        let queues = |receive, transmit, most_receive| Device {
            queues: Some(Queues { receive, transmit, most_receive, combined: true }),
            ..device()
        };
        let one = link();
        for (device, level, word) in [
            (queues(2, 2, 2), Level::Ok, "2 receive"),
            (queues(1, 1, 8), Level::Note, "ethtool -L eth0 combined 2"),
            (queues(1, 1, 1), Level::Note, "one CPU"),
            (queues(2, 1, 2), Level::Note, "transmit queue for each"),
            (device(), Level::Note, "1 receive"),
        ] {
            check(facts(&one, &device, NATIVE), "queues", level, word);
        }
        // Room for queues does not say how many there are.
        let device = device();
        let room = Interface { rx_queues: Some(64), tx_queues: Some(64), ..link() };
        check(facts(&room, &device, NATIVE), "queues", Level::Ok, "");
        // Nor is there a queue where packets come from another interface here.
        check(facts(&one, &device, NONE), "queues", Level::Ok, "");
        let unknown = Facts { cpus: None, ..facts(&one, &device, NATIVE) };
        check(unknown, "queues", Level::Ok, "");
    }

    #[test]
    fn offloads_are_told() {
        let link = link();
        let device = |gro, lro| Device { gro, lro, ..device() };
        let on = device(Some(true), Some(true));
        check(facts(&link, &on, NATIVE), "lro", Level::Warning, "ethtool -K eth0 lro off");
        check(facts(&link, &on, NATIVE), "gro", Level::Ok, "before it");
        check(facts(&link, &on, NONE), "gro", Level::Note, "merged");
        let off = device(Some(false), Some(false));
        check(facts(&link, &off, NONE), "gro", Level::Ok, "off");
        check(facts(&link, &off, NONE), "lro", Level::Ok, "");
        let unknown = device(None, None);
        check(facts(&link, &unknown, NONE), "gro", Level::Ok, "");
        check(facts(&link, &unknown, NONE), "lro", Level::Ok, "");
    }

    #[test]
    fn programs_are_told_by_whose_they_are() {
        let device = device();
        let link = Interface { native: Some(12), ..link() };
        let facts = facts(&link, &device, NATIVE);
        let program = |name: Option<&str>, pinned| Program { name: name.map(Into::into), pinned };
        for (program, level, word) in [
            (program(Some("limiterd"), Some(true)), Level::Ok, "own"),
            (program(None, Some(true)), Level::Ok, "own"),
            (program(Some("limiterd"), Some(false)), Level::Error, "--pin-dir"),
            (program(Some("other"), Some(false)), Level::Error, "'other'"),
            (program(Some("other"), None), Level::Error, "xdp off"),
            (program(None, Some(false)), Level::Error, "xdp off"),
            (program(None, None), Level::Note, "sudo"),
        ] {
            let finding = facts.program(&program).unwrap();
            assert_eq!(finding.level, level, "{finding}");
            assert!(finding.to_string().contains(word), "{finding}");
        }
        let seen = Facts { named: false, ..facts };
        let finding = seen.program(&program(Some("other"), None)).unwrap();
        assert_eq!(finding.level, Level::Warning);
        let none = Interface { native: None, ..link.clone() };
        assert_eq!(Facts { link: &none, ..facts }.program(&Program::default()), None);
    }

    #[test]
    fn a_start_is_told_what_matters_in_its_mode() {
        let device = Device { lro: Some(true), ..device() };
        let link = Interface { mtu: 9000, up: false, ..link() };
        let subjects = |mode| -> Vec<String> {
            let findings = facts(&link, &device, NATIVE).warnings(mode);
            findings.into_iter().map(|finding| finding.subject).collect()
        };
        assert_eq!(subjects(Mode::Native), ["eth0 state"]);
        assert_eq!(subjects(Mode::Generic), ["eth0 state", "eth0 mtu", "eth0 lro"]);
    }

    #[test]
    fn running_cpus_are_counted() {
        for (text, count) in [("0\n", 1), ("0-3\n", 4), ("0-3,5,8-9\n", 7)] {
            assert_eq!(online(text), Some(count));
        }
        for text in ["", "x", "3-1", "0-", "0-4294967295", "0,,1"] {
            assert_eq!(online(text), None, "{text}");
        }
    }
}
