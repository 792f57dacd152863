//! Programs that others have written and that are run here, with the packages
//! of Debian that have them.

/// A program, and its package.
pub(crate) type Tool = (&'static str, &'static str);

/// What makes networks.
pub(crate) const IP: [Tool; 1] = [("ip", "iproute2")];

/// What the tests send traffic with.
pub(crate) const TRAFFIC: [Tool; 3] =
    [("hping3", "hping3"), ("iperf3", "iperf3"), ("ping", "iputils-ping")];

/// What is measured beside limiterd.
pub(crate) const PEERS: [Tool; 3] =
    [("iptables", "iptables"), ("nft", "nftables"), ("xdp-filter", "xdp-tools")];

/// What the metrics are read with.
pub(crate) const PROMETHEUS: [Tool; 1] = [("promtool", "prometheus")];

/// What reads the captures, and what shows the page.
pub(crate) const VIEWERS: [Tool; 2] = [("chromium", "chromium"), ("tshark", "tshark")];

/// The fuzzer's engine is written in C++.
pub(crate) const FUZZ: [Tool; 1] = [("c++", "g++")];

/// What the unit is checked with.
pub(crate) const SYSTEMD: [Tool; 1] = [("systemd-analyze", "systemd")];

/// What the oldest kernel is run with.
pub(crate) const EMULATION: [Tool; 4] = [
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("ip", "iproute2"),
    ("qemu-system-x86_64", "qemu-system-x86"),
];

/// What goodput is measured with.
pub(crate) const GOODPUT: [Tool; 4] = [
    ("ethtool", "ethtool"),
    ("gnuplot", "gnuplot-nox"),
    ("nginx", "nginx"),
    ("taskset", "util-linux"),
];

/// All that a whole run of the tests needs.
pub(crate) fn of_tests() -> Vec<Tool> {
    [&IP[..], &TRAFFIC, &PEERS, &FUZZ, &SYSTEMD, &PROMETHEUS, &VIEWERS].concat()
}

/// All that the benchmark needs.
pub(crate) fn of_benchmark() -> Vec<Tool> {
    [&IP[..], &PEERS].concat()
}

/// All that the pictures need.
pub(crate) fn of_pictures() -> Vec<Tool> {
    [&IP[..], &PROMETHEUS, &VIEWERS].concat()
}

/// All that the measurement of goodput needs.
pub(crate) fn of_goodput() -> Vec<Tool> {
    [&IP[..], &PEERS[1..2], &GOODPUT].concat()
}
