//! The program loaded into the kernel and attached to nothing.

use std::{
    os::fd::{AsFd as _, AsRawFd as _},
    path::PathBuf,
};

use aya::{
    Ebpf,
    maps::{MapData, PerCpuHashMap},
    programs::{TestRun as _, TestRunOptions, Xdp, XdpMode},
};
use aya_obj::programs::XdpAttachType;
use limiter_common::{
    bucket::Bucket,
    source::{Key4, Key6},
    stats::Counter,
    verdict::{Decision, Reason, Verdict},
};
use limiter_user::{
    compiled::Compiled,
    object,
    plane::{Count, Fixed, Instance, Options, Plane},
    sizing::{Sizing, Wish},
};

use crate::{host::Host, net::IFACE, sandbox::BPF_FS};

/// `XDP_DROP` and `XDP_PASS` of include/uapi/linux/bpf.h.
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

/// A loaded program with its maps.
pub struct Program {
    plane: Plane,
    /// Number of the interface whose program it is.
    interface: u32,
    policies: u32,
    runner: Runner,
}

/// A second handle on a loaded program, for another thread.
pub struct Runner(Xdp);

impl Runner {
    /// Runs the program `repeat` times on the calling thread's CPU.
    ///
    /// # Panics
    /// If the kernel refuses, as it does for frames below 14 bytes.
    #[must_use]
    pub fn run(&self, frame: &[u8], repeat: u32) -> Run {
        let options = TestRunOptions { data_in: Some(frame), repeat, ..TestRunOptions::default() };
        let result = self.0.test_run(options).expect("BPF_PROG_TEST_RUN");
        Run { action: result.return_value, ns: result.duration.as_nanos() as f64 }
    }

    /// The program's descriptor.
    ///
    /// # Panics
    /// Never: it is loaded.
    #[must_use]
    pub fn fd(&self) -> &aya::programs::ProgramFd {
        self.0.fd().expect("a loaded program")
    }

    /// What the kernel says of the program.
    ///
    /// # Panics
    /// If it says nothing.
    #[must_use]
    pub fn info(&self) -> aya::programs::ProgramInfo {
        self.0.info().expect("a loaded program")
    }
}

/// What one run of the program came to.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Action of the last repeat.
    pub action: u32,
    /// Mean time of a repeat, nanoseconds, as the kernel measures it.
    pub ns: f64,
}

/// Number of possible CPUs.
///
/// # Panics
/// If the kernel does not say.
#[must_use]
pub fn cpus() -> u32 {
    u32::try_from(aya::util::nr_cpus().expect("possible CPUs")).expect("at most 2^32")
}

/// Opens the program of an interface once more, by way of a pin.
fn open(plane: &mut Plane, interface: u32) -> Runner {
    let path = PathBuf::from(BPF_FS).join("test-program");
    let program =
        plane.instances()[interface as usize].program().unwrap_or_else(|error| panic!("{error}"));
    program.pin(&path).expect("pinning");
    let program = Xdp::from_pin(&path, XdpAttachType::Interface).expect("opening the pin");
    std::fs::remove_file(&path).expect("removing the pin");
    Runner(program)
}

impl Program {
    /// Loads the program with these rules; `max_sources` as for the daemon.
    /// Counters are read for the first `policies` policies.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[must_use]
    pub fn load(rules: impl Into<Compiled>, policies: u32, max_sources: u32) -> Self {
        Self::load_on(0, rules, policies, max_sources, None)
    }

    /// The same, with so many samples per second of each verdict and reason.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[must_use]
    pub fn load_showing(
        samples: u32,
        rules: impl Into<Compiled>,
        policies: u32,
        max_sources: u32,
    ) -> Self {
        Self::load_as(0, samples, &rules.into(), policies, max_sources, None)
    }

    /// The same for the interface of this number, and with what tests fix.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[must_use]
    pub fn load_on(
        interface: u32,
        rules: impl Into<Compiled>,
        policies: u32,
        max_sources: u32,
        fixed: Option<Fixed>,
    ) -> Self {
        Self::load_as(interface, 0, &rules.into(), policies, max_sources, fixed)
    }

    fn load_as(
        interface: u32,
        samples: u32,
        rules: &Compiled,
        policies: u32,
        max_sources: u32,
        fixed: Option<Fixed>,
    ) -> Self {
        let loads = interface + 1;
        let options = Options {
            // The two kinds stand side by side in the benchmark.
            pin_dir: PathBuf::from(BPF_FS).join(format!("limiterd-{samples}")),
            interfaces: (0..loads).map(|number| format!("test{number}")).collect(),
            samples,
            spares: 0,
            sizing: Sizing::new(cpus(), loads, Wish::Sources(max_sources)).expect("in range"),
            fixed,
        };
        let mut plane = Plane::load(&options, rules).unwrap_or_else(|error| panic!("{error}"));
        let runner = open(&mut plane, interface);
        Self { plane, interface, policies, runner }
    }

    /// The plane behind it.
    pub fn plane(&mut self) -> &mut Plane {
        &mut self.plane
    }

    /// The program with its maps.
    pub fn instance(&mut self) -> &mut Instance {
        &mut self.plane.instances()[self.interface as usize]
    }

    /// Runs the program `repeat` times on the calling thread's CPU.
    ///
    /// # Panics
    /// As [`Runner::run`].
    #[must_use]
    pub fn run(&self, frame: &[u8], repeat: u32) -> Run {
        self.runner.run(frame, repeat)
    }

    /// One more handle to run it by.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[must_use]
    pub fn runner(&mut self) -> Runner {
        open(&mut self.plane, self.interface)
    }

    /// What is counted now, rows without packets left out.
    ///
    /// # Panics
    /// If the kernel refuses a map access.
    #[must_use]
    pub fn counts(&self) -> Vec<Count> {
        self.plane
            .counts(self.interface as usize, 0..self.policies)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Packets counted under a reason with a verdict, over all policies.
    #[must_use]
    pub fn packets(&self, verdict: Verdict, reason: Reason) -> u64 {
        let counts = self.counts().into_iter();
        counts
            .filter(|count| count.verdict == verdict && count.reason == reason)
            .map(|count| count.counter.packets)
            .sum()
    }

    /// Runs the program once and says what it decided, from the one counter
    /// that moved, checked against the action.
    ///
    /// # Panics
    /// If not exactly one counter moved by one packet, or the action is
    /// another than counted.
    pub fn decide(&self, frame: &[u8]) -> Decision {
        self.decide_after(&self.counts(), frame).0
    }

    /// As [`Program::decide`], from the counts before to the counts after, for
    /// a long row of packets.
    ///
    /// # Panics
    /// As [`Program::decide`].
    pub fn decide_after(&self, before: &[Count], frame: &[u8]) -> (Decision, Vec<Count>) {
        let run = self.run(frame, 1);
        let after = self.counts();
        let moved: Vec<_> = after.iter().copied().filter(|count| !before.contains(count)).collect();
        let [now] = moved[..] else {
            panic!("one packet moved these counters: {moved:?}");
        };
        let was = before
            .iter()
            .find(|count| {
                (count.policy, count.verdict, count.reason) == (now.policy, now.verdict, now.reason)
            })
            .map_or(Counter::default(), |count| count.counter);
        assert_eq!(now.counter.packets, was.packets + 1, "one packet counts as one");
        let action = if now.verdict == Verdict::Drop { XDP_DROP } else { XDP_PASS };
        assert_eq!(run.action, action, "the action of {now:?}");
        let decision = Decision {
            verdict: now.verdict,
            reason: now.reason,
            policy: now.policy,
            bytes: u32::try_from(now.counter.bytes - was.bytes).expect("one frame"),
        };
        (decision, after)
    }

    /// The keys that have a bucket.
    ///
    /// # Panics
    /// If the kernel refuses a map access.
    pub fn keys(&mut self) -> (Vec<Key4>, Vec<Key6>) {
        let ebpf = &self.instance().ebpf;
        let four: PerCpuHashMap<&MapData, Key4, Bucket> =
            ebpf.map("SOURCES4").expect("the map").try_into().expect("its type");
        let six: PerCpuHashMap<&MapData, Key6, Bucket> =
            ebpf.map("SOURCES6").expect("the map").try_into().expect("its type");
        let four = four.keys().map(|key| key.expect("a key")).collect();
        let six = six.keys().map(|key| key.expect("a key")).collect();
        (four, six)
    }

    /// Shared words of the buckets of some IPv4 keys.
    ///
    /// # Panics
    /// If the kernel refuses a map access.
    pub fn buckets4(&mut self, wanted: impl Fn(&Key4) -> bool) -> Vec<u64> {
        let (keys, _) = self.keys();
        self.words("SOURCES4", keys.into_iter().filter(wanted))
    }

    /// The same for IPv6.
    ///
    /// # Panics
    /// If the kernel refuses a map access.
    pub fn buckets6(&mut self, wanted: impl Fn(&Key6) -> bool) -> Vec<u64> {
        let (_, keys) = self.keys();
        self.words("SOURCES6", keys.into_iter().filter(wanted))
    }

    fn words<K: aya::Pod>(&mut self, map: &str, keys: impl Iterator<Item = K>) -> Vec<u64> {
        let ebpf = &self.instance().ebpf;
        let map: PerCpuHashMap<&MapData, K, Bucket> =
            ebpf.map(map).expect("the map").try_into().expect("its type");
        let word = |key| {
            let slots = map.get(&key, 0).expect("a bucket that was there");
            // All but the home CPU's are zero.
            slots.iter().map(|bucket| bucket.tat).max().expect("a CPU")
        };
        keys.map(word).collect()
    }

    /// Forgets every source.
    ///
    /// # Panics
    /// If the kernel refuses a map access.
    pub fn forget(&mut self) {
        let (four, six) = self.keys();
        self.remove("SOURCES4", &four);
        self.remove("SOURCES6", &six);
    }

    fn remove<K: aya::Pod>(&mut self, map: &str, keys: &[K]) {
        let ebpf = &mut self.instance().ebpf;
        let mut map: PerCpuHashMap<&mut MapData, K, Bucket> =
            ebpf.map_mut(map).expect("the map").try_into().expect("its type");
        for key in keys {
            map.remove(key).expect("a key that was there");
        }
    }

    /// Bytes that the kernel says all maps of the load take.
    ///
    /// # Panics
    /// If the kernel does not say.
    #[must_use]
    pub fn memory(&mut self) -> u64 {
        let ids = self.runner.info().map_ids().expect("maps").expect("maps");
        ids.into_iter().map(|id| memory(&MapData::from_id(id).expect("a map"))).sum()
    }
}

/// Bytes that the kernel says a map takes.
fn memory(map: &MapData) -> u64 {
    let fd = map.fd().as_fd().as_raw_fd();
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).expect("fdinfo");
    let line = info.lines().find_map(|line| line.strip_prefix("memlock:"));
    line.expect("the memory of a map").trim().parse().expect("a number")
}

/// Attaches somebody else's program to a host's [`IFACE`], for as long as the
/// returned object lives.
///
/// # Panics
/// If the kernel refuses.
#[must_use]
pub fn attach_foreign(host: &Host) -> Ebpf {
    host.call(|| {
        let mut ebpf = Ebpf::load(object::BENCH.expect("the objects")).expect("loading");
        let program: &mut Xdp =
            ebpf.program_mut("bare_drop").expect("there").try_into().expect("XDP");
        program.load().expect("loading");
        program.attach(IFACE, XdpMode::Driver).expect("attaching");
        ebpf
    })
}
