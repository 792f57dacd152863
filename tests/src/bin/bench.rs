//! Nanoseconds per packet, as ratios to a bare `XDP_DROP` of the same run.
//!
//! `BPF_PROG_TEST_RUN` repeats a packet in the kernel, which measures the time
//! itself. Where the source must change, a program in front writes it and goes
//! on to the one under test; its own cost, measured with a bare `XDP_DROP`
//! behind it, is subtracted.

use std::{
    net::{IpAddr, Ipv4Addr},
    process::ExitCode,
    sync::Barrier,
};

use aya::programs::{ProgramFd, ProgramInfo};
use clap::Parser;
use limiter_common::lists::FOREVER;
use limiter_tests::{
    front::{Family, Front, Shape, Stage},
    peers::{Filter, Receiver, XdpFilter},
    program::{Program, cpus},
    sandbox,
    watched::{Watched, watch},
};
use limiter_user::{
    change::{Change, LevelChange},
    compiled::Compiled,
    config::{Host, parse},
    gate::Gate,
    lists::{List, Statement},
    plane::DEFAULT_SAMPLES,
    policies::Policies,
    prefix::Prefix,
    sizing::{Sizing, Wish},
};
use serde::Serialize;

/// Repeats of one measurement.
const REPEAT: u32 = 400_000;
/// Repeats of one measurement of packets that go through the stack.
const LIVE_REPEAT: u32 = 100_000;
/// Nothing changes, 2^16 sources, 2^32 sources, every other of 2^32.
const ONE: Shape = Shape { mask: 0, every_other: 0, listed: 0, first: 0, host_mask: 0 };
const RESIDENT: Shape = Shape { mask: 0xffff, ..ONE };
const RANDOM: Shape = Shape { mask: u32::MAX, ..ONE };
const BETWEEN: Shape = Shape { every_other: 1, ..RANDOM };

const ONE_DENIED: &str = "one source, denied";
const ONE_ADMITTED: &str = "one source, admitted";
const RESIDENT_SOURCES: &str = "64k resident sources";
const RANDOM_SOURCES: &str = "random, of 2^32 sources";
const POLITE: &str = "a polite source among random ones";
const TWO_CPUS: &str = "one admitted source on two CPUs";

/// Measures nanoseconds per packet.
#[derive(Parser)]
struct Arguments {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Print the tables in Markdown, as they stand in the README
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Measurements of each row
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Leave the other tools out
    #[arg(long)]
    alone: bool,
}

/// One row: what was measured.
#[derive(Serialize)]
struct Row {
    tool: &'static str,
    name: &'static str,
    family: &'static str,
    ns_least: f64,
    ns_median: f64,
    /// Least time to the least time of a bare `XDP_DROP`, measured in turn.
    ratio: f64,
    /// The ratio that is aimed at.
    goal: Option<f64>,
}

/// Sizes of one program.
#[derive(Serialize)]
struct Size {
    program: &'static str,
    verified_instructions: u32,
    translated_bytes: u32,
    jited_bytes: u32,
}

/// Everything that was measured.
#[derive(Serialize)]
struct Report {
    schema_version: u32,
    kernel: String,
    cpus: u32,
    bare_drop_ns: f64,
    /// The programs alone.
    rows: Vec<Row>,
    /// Packets that are handed to the network stack by a veth.
    live_bare_drop_ns: Option<f64>,
    /// They were to be measured, but this kernel lets nobody do that.
    live_refused: bool,
    live_rows: Vec<Row>,
    programs: Vec<Size>,
    /// The daemon itself, under a flood.
    watched: Vec<Watched>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if !rustix::process::geteuid().is_root() {
        eprintln!("bench: it loads programs into the kernel and needs root; run it with sudo");
        return ExitCode::FAILURE;
    }
    let watched = [1, 1_000_000].map(watch).to_vec();
    sandbox::enter();
    sandbox::pin_to_cpu(usize::from(cpus() > 1));
    let report = Report { watched, ..measure(arguments.rounds.max(1), !arguments.alone) };
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report).expect("JSON"));
    } else {
        print(&report, arguments.markdown);
    }
    ExitCode::SUCCESS
}

fn sizing() -> Sizing {
    Sizing::new(cpus(), 1, Wish::Default).expect("the default")
}

/// The built-in profile, UDP at this rate and burst, and this budget for new
/// sources.
fn profile(rate: &str, burst: &str, new_sources: Option<&str>) -> Compiled {
    let source = LevelChange {
        rate: Some(rate.parse().expect("a rate")),
        burst: Some(burst.parse().expect("a burst")),
        ..LevelChange::default()
    };
    let change = Change { source, ..Change::default() };
    let policies = Policies::builtin(false).changed("udp", &change).expect("the policy");
    let new_sources = new_sources.map(|rate| rate.parse().expect("a rate"));
    let policies = policies.with_gate(Gate { new_sources, untracked: None });
    policies.compile(sizing()).expect("in range")
}

impl Size {
    fn of(program: &'static str, info: &ProgramInfo) -> Self {
        Self {
            program,
            verified_instructions: info.verified_instruction_count().unwrap_or_default(),
            translated_bytes: info.size_translated().unwrap_or_default(),
            jited_bytes: info.size_jitted(),
        }
    }
}

impl Row {
    /// By how much a goal is missed, in words.
    fn missed(&self) -> Option<String> {
        let beyond = 100.0 * (self.ratio / self.goal? - 1.0);
        // The ratios themselves are no better than that.
        (beyond > 1.0).then(|| format!("{}, {}, by {beyond:.0} %", self.name, self.family))
    }
}

/// One measurement, with the bare drop of the same moment.
#[derive(Clone, Copy)]
struct Sample {
    ns: f64,
    bare: f64,
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

impl Row {
    fn new(
        tool: &'static str,
        name: &'static str,
        family: Family,
        goal: Option<f64>,
        samples: &[Sample],
    ) -> Self {
        let least = |of: fn(&Sample) -> f64| samples.iter().map(of).fold(f64::INFINITY, f64::min);
        Self {
            tool,
            name,
            family: family.name(),
            ns_least: least(|sample| sample.ns),
            ns_median: median(samples.iter().map(|sample| sample.ns)),
            ratio: least(|sample| sample.ns) / least(|sample| sample.bare),
            goal,
        }
    }
}

fn measure(rounds: usize, with_peers: bool) -> Report {
    let mut front = Front::load();
    let mut program = Program::load(profile("1/s", "10", None), 6, sizing().max_sources);
    let minimal = front.program("minimal4").info().expect("a loaded program");
    let mut programs =
        vec![Size::of("limiterd", &program.runner().info()), Size::of("minimal limiter", &minimal)];
    let mut rows = Vec::new();
    for family in [Family::V4, Family::V6] {
        rows.extend(one_source(&mut front, &mut program, family, rounds));
        rows.extend(many_sources(&mut front, &mut program, family, rounds));
    }
    rows.extend(policies(&mut front, &mut program, rounds));
    rows.extend(lists(&mut front, &mut program, rounds));
    rows.extend(samples(&mut front, &mut program, rounds));
    let (mut live_rows, mut live_bare_drop_ns, mut live_refused) = (Vec::new(), None, false);
    if with_peers {
        let peer = XdpFilter::load();
        programs.push(Size::of("xdp-filter", &peer.info));
        for family in [Family::V4, Family::V6] {
            rows.extend(xdp_filter(&mut front, &peer, family, rounds));
        }
        program.plane().set_rules(&profile("1/s", "10", None)).expect("setting rules");
        let live = Live::new(&program.runner().fd().try_clone().expect("a descriptor"));
        match live.measure(rounds) {
            Some((rows, bare)) => (live_rows, live_bare_drop_ns) = (rows, Some(bare)),
            None => live_refused = true,
        }
    }
    let frame = Family::V4.frame();
    Report {
        schema_version: 1,
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        cpus: cpus(),
        bare_drop_ns: (0..rounds).map(|_| bare(&mut front, &frame)).fold(f64::INFINITY, f64::min),
        rows,
        live_bare_drop_ns,
        live_refused,
        live_rows,
        programs,
        watched: Vec::new(),
    }
}

fn bare(front: &mut Front, frame: &[u8]) -> f64 {
    front.alone("bare_drop", frame, REPEAT, Stage::Alone)
}

/// One source, always the same packet.
fn one_source(front: &mut Front, program: &mut Program, family: Family, rounds: usize) -> Vec<Row> {
    let frame = family.frame();
    let runner = program.runner();
    let mut rows = Vec::new();
    for (name, rate, burst) in [(ONE_DENIED, "1/s", "10"), (ONE_ADMITTED, "10M/s", "4G")] {
        let rules = profile(rate, burst, None);
        program.plane().set_rules(&rules).expect("setting rules");
        let _warm = runner.run(&frame, REPEAT);
        let sample = |_| Sample { bare: bare(front, &frame), ns: runner.run(&frame, REPEAT).ns };
        let samples: Vec<_> = (0..rounds).map(sample).collect();
        rows.push(Row::new("limiterd", name, family, Some(3.0), &samples));
    }
    if cpus() > 1 {
        let bare: Vec<_> = (0..rounds).map(|_| bare(front, &frame)).collect();
        let times = on_two_cpus(program, &frame, rounds);
        let samples = times.into_iter().zip(bare).map(|(ns, bare)| Sample { ns, bare });
        let goal = rows.last().map(|one| 1.2 * one.ratio);
        rows.push(Row::new("limiterd", TWO_CPUS, family, goal, &samples.collect::<Vec<_>>()));
    }
    rows
}

/// One admitted IPv4 source under some policies, of which it meets the last.
fn policies(front: &mut Front, program: &mut Program, rounds: usize) -> Vec<Row> {
    let on_ports = |count: u16| {
        let other = |n| policy(n, &format!("proto = \"udp\", ports = {}", 2000 + n), "1/s");
        let last = policy(count, "proto = \"udp\", ports = 9", "10M/s\"\nburst = \"4G");
        (1..count).map(other).collect::<String>() + &last
    };
    let on_prefixes = |count: u16| {
        let other = |n| policy(n, &format!("sources = \"10.{n}.0.0/16\""), "1/s");
        let last = policy(count, "sources = \"198.18.0.0/16\"", "10M/s\"\nburst = \"4G");
        (1..count).map(other).collect::<String>() + &last
    };
    let mut rows: Vec<Row> = Vec::new();
    for (name, text) in [
        ("1 policy, on ports", on_ports(1)),
        ("16 policies, on ports", on_ports(16)),
        ("64 policies, on ports", on_ports(64)),
        ("1 policy, on source prefixes", on_prefixes(1)),
        ("64 policies, on source prefixes", on_prefixes(64)),
    ] {
        let host = Host { cpus: cpus(), memory_bytes: None };
        let (config, _) = parse(&text, name, &host).unwrap_or_else(|report| panic!("{report}"));
        let rules = Policies::new(config, false).compile(sizing()).expect("in range");
        program.plane().set_rules(&rules).expect("setting rules");
        let goal = rows.first().filter(|_| name.ends_with("ports")).map(|one| 1.15 * one.ratio);
        rows.push(admitted(front, program, name, goal, rounds));
    }
    rows
}

fn policy(number: u16, matches: &str, rate: &str) -> String {
    format!("[[policy]]\nname = \"p{number}\"\nmatch = {{ {matches} }}\nrate = \"{rate}\"\n\n")
}

/// One IPv4 source beside bans of others, and under one.
fn lists(front: &mut Front, program: &mut Program, rounds: usize) -> Vec<Row> {
    let statement = || Statement { until: FOREVER, created: 0, reason: None };
    let spread = |n: u32| Ipv4Addr::from(0x1400_0000 + n.wrapping_mul(0x9e37_79b1) % 0x4000_0000);
    let addresses = |count: u32| (0..count).map(|n| Prefix::from(IpAddr::V4(spread(n)))).collect();
    let prefixes = |count: u32| (0..count).map(|n| Prefix::new(spread(n).into(), 24)).collect();
    let ours = |length: u8| Prefix::new(Ipv4Addr::new(198, 18, 0, 1).into(), length);
    let with = |mut prefixes: Vec<Prefix>, one: Prefix| {
        prefixes.push(one);
        prefixes
    };
    let cases: [(&'static str, Vec<Prefix>); 7] = [
        ("no bans", Vec::new()),
        ("beside 10k banned addresses", addresses(10_000)),
        ("banned, one of 10k addresses", with(addresses(10_000), ours(32))),
        ("beside 1k banned prefixes", prefixes(1_000)),
        ("beside 10k banned prefixes", prefixes(10_000)),
        (
            "near one of 10k banned prefixes",
            with(prefixes(10_000), Prefix::new(Ipv4Addr::new(198, 18, 7, 0).into(), 24)),
        ),
        ("in one of 10k banned prefixes", with(prefixes(10_000), ours(24))),
    ];
    program.plane().set_rules(&profile("10M/s", "4G", None)).expect("setting rules");
    let mut rows: Vec<Row> = Vec::new();
    for (name, banned) in cases {
        let statements = banned.iter().map(|prefix| (*prefix, statement())).collect();
        program.plane().add(List::Ban, statements).expect("room");
        // No more than 60 % of a bare drop above the same without bans.
        let goal = rows.first().filter(|_| name == "beside 10k banned addresses");
        let goal = goal.map(|none| none.ratio + 0.6);
        rows.push(admitted(front, program, name, goal, rounds));
        let all: Vec<_> = program.plane().statements(List::Ban).map(|(prefix, _)| prefix).collect();
        program.plane().remove(List::Ban, &all).expect("removal");
    }
    rows
}

/// The same with samples for events, as many as the daemon takes, and without.
fn samples(front: &mut Front, without: &mut Program, rounds: usize) -> Vec<Row> {
    let rules = || profile("1/s", "10", None);
    let mut with = Program::load_showing(DEFAULT_SAMPLES, rules(), 6, sizing().max_sources);
    let mut taken = with.plane().samples().expect("samples");
    let frame = Family::V4.frame();
    let runners = [without.runner(), with.runner()];
    let mut rows = Vec::new();
    for (names, rate, burst) in [
        (["denied, without events", "denied, with events"], "1/s", "10"),
        (["admitted, without events", "admitted, with events"], "10M/s", "4G"),
    ] {
        for program in [&mut *without, &mut with] {
            program.plane().set_rules(&profile(rate, burst, None)).expect("setting rules");
        }
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..=rounds {
            let bare = bare(front, &frame);
            for (runner, times) in runners.iter().zip(&mut times) {
                times.push(Sample { bare, ns: runner.run(&frame, REPEAT).ns });
            }
            // As the daemon does: the ring is never full.
            assert!(taken.by_ref().count() > 0, "nothing was shown");
        }
        // The first round warms up.
        let [without, with] = times.map(|times| times[1..].to_vec());
        let without = Row::new("limiterd", names[0], Family::V4, None, &without);
        let goal = 1.05 * without.ratio;
        rows.extend([without, Row::new("limiterd", names[1], Family::V4, Some(goal), &with)]);
    }
    rows
}

/// One IPv4 source, whatever is in force.
fn admitted(
    front: &mut Front,
    program: &mut Program,
    name: &'static str,
    goal: Option<f64>,
    rounds: usize,
) -> Row {
    let frame = Family::V4.frame();
    let runner = program.runner();
    let _warm = runner.run(&frame, REPEAT);
    let sample = |_| Sample { bare: bare(front, &frame), ns: runner.run(&frame, REPEAT).ns };
    let samples: Vec<_> = (0..rounds).map(sample).collect();
    Row::new("limiterd", name, Family::V4, goal, &samples)
}

/// Sources that change with each packet.
fn many_sources(
    front: &mut Front,
    program: &mut Program,
    family: Family,
    rounds: usize,
) -> Vec<Row> {
    let frame = family.frame();
    let runner = program.runner();
    let ours = runner.fd();
    let minimal = front.fd(match family {
        Family::V4 => "minimal4",
        Family::V6 => "minimal6",
    });
    let mut rows = Vec::new();
    // All of them are to have a bucket, in both.
    program.plane().set_rules(&profile("1/s", "10", Some("10M/s"))).expect("setting rules");
    for next in [&minimal, ours] {
        let _warm = front.before(next, family, RESIDENT, 4 * REPEAT, Stage::Alone);
    }
    let samples = behind(front, &minimal, family, RESIDENT, rounds);
    let least = Row::new("minimal limiter", RESIDENT_SOURCES, family, None, &samples);
    let samples = behind(front, ours, family, RESIDENT, rounds);
    let goal = Some(1.1 * least.ratio);
    rows.push(Row::new("limiterd", RESIDENT_SOURCES, family, goal, &samples));
    rows.push(least);

    program.plane().set_rules(&profile("10M/s", "4G", None)).expect("setting rules");
    let _warm = runner.run(&frame, REPEAT);
    let _warm = front.before(ours, family, RANDOM, 4 * REPEAT, Stage::Alone);
    let samples = behind(front, ours, family, RANDOM, rounds);
    rows.push(Row::new("limiterd", RANDOM_SOURCES, family, Some(2.5), &samples));
    // Half of the packets are random: the other half is twice the time of all
    // without the time of random ones, each at its least.
    let _warm = front.before(ours, family, BETWEEN, REPEAT, Stage::Alone);
    let both = Row::new("", "", family, None, &behind(front, ours, family, BETWEEN, rounds));
    if let Some(random) = rows.last() {
        let other = |both: f64, random: f64| 2.0 * both - random;
        rows.push(Row {
            tool: "limiterd",
            name: POLITE,
            family: family.name(),
            ns_least: other(both.ns_least, random.ns_least),
            ns_median: other(both.ns_median, random.ns_median),
            ratio: other(both.ratio, random.ratio),
            goal: Some(3.5),
        });
    }

    let _warm = front.before(&minimal, family, RANDOM, 4 * REPEAT, Stage::Alone);
    let samples = behind(front, &minimal, family, RANDOM, rounds);
    rows.push(Row::new("minimal limiter", RANDOM_SOURCES, family, None, &samples));
    rows
}

/// Measures `next` behind the front, without the time of the front.
fn behind(
    front: &mut Front,
    next: &ProgramFd,
    family: Family,
    shape: Shape,
    rounds: usize,
) -> Vec<Sample> {
    let (frame, drop) = (family.frame(), front.fd("bare_drop"));
    let sample = |_| {
        let bare = bare(front, &frame);
        let alone = front.before(&drop, family, shape, REPEAT, Stage::Alone);
        let both = front.before(next, family, shape, REPEAT, Stage::Alone);
        Sample { bare, ns: both - alone + bare }
    };
    (0..rounds).map(sample).collect()
}

/// xdp-filter with one address on its list. It knows no rates.
fn xdp_filter(front: &mut Front, peer: &XdpFilter, family: Family, rounds: usize) -> [Row; 2] {
    let (frame, drop) = (family.frame(), front.fd("plain_drop"));
    [("one source, listed", ONE), (RANDOM_SOURCES, RANDOM)].map(|(name, shape)| {
        let sample = |_| {
            let bare = bare(front, &frame);
            let alone = front.before_plain(&drop, family, shape, REPEAT);
            let both = front.before_plain(&peer.program, family, shape, REPEAT);
            Sample { bare, ns: both - alone + bare }
        };
        let samples: Vec<_> = (0..rounds).map(sample).collect();
        Row::new("xdp-filter", name, family, None, &samples)
    })
}

/// What is measured with packets that go through the stack.
struct Live {
    receiver: Receiver,
    front: Front,
    ours: ProgramFd,
    drop: ProgramFd,
    pass: ProgramFd,
}

impl Live {
    fn new(ours: &ProgramFd) -> Self {
        let receiver = Receiver::new();
        let mut front = receiver.pass_everything(Front::load());
        let (drop, pass) = (front.fd("bare_drop"), front.fd("bare_pass"));
        let ours = ours.try_clone().expect("a descriptor");
        Self { receiver, front, ours, drop, pass }
    }

    /// The rows, and the time of a bare drop; none if the kernel refuses.
    fn measure(mut self, rounds: usize) -> Option<(Vec<Row>, f64)> {
        let index = self.receiver.index;
        let mut front = std::mem::replace(&mut self.front, Front::load());
        let (front, may_run) = self.receiver.call(move || {
            let may_run = front.may_run_live(index);
            (front, may_run)
        });
        self.front = front;
        if !may_run {
            return None;
        }
        let mut rows = Vec::new();
        let shapes = [(ONE_DENIED, ONE), (RESIDENT_SOURCES, RESIDENT), (RANDOM_SOURCES, RANDOM)];
        for family in [Family::V4, Family::V6] {
            for (tool, filter) in [
                ("limiterd", None),
                ("nftables meter", Some(Filter::Nftables)),
                ("iptables hashlimit", Some(Filter::Iptables)),
            ] {
                if let Some(filter) = filter {
                    self.receiver.put(filter);
                }
                for (name, shape) in shapes {
                    let next = if filter.is_none() { &self.ours } else { &self.pass };
                    let next = next.try_clone().expect("a descriptor");
                    let samples = self.samples(next, family, shape, rounds);
                    rows.push(Row::new(tool, name, family, None, &samples));
                }
                if let Some(filter) = filter {
                    self.receiver.remove(filter);
                }
            }
        }
        let bare =
            self.samples(self.drop.try_clone().expect("a descriptor"), Family::V4, ONE, rounds);
        Some((rows, bare.iter().map(|sample| sample.bare).fold(f64::INFINITY, f64::min)))
    }

    fn samples(
        &mut self,
        next: ProgramFd,
        family: Family,
        shape: Shape,
        rounds: usize,
    ) -> Vec<Sample> {
        let stage = Stage::Live(self.receiver.index);
        let drop = self.drop.try_clone().expect("a descriptor");
        // A thread on the receiver's network; the front goes there and back.
        let mut front = std::mem::replace(&mut self.front, Front::load());
        let (front, samples) = self.receiver.call(move || {
            sandbox::pin_to_cpu(usize::from(cpus() > 1));
            let frame = family.frame();
            let _warm = front.before(&next, family, shape, LIVE_REPEAT, stage);
            let sample = |_| {
                let bare = front.alone("bare_drop", &frame, LIVE_REPEAT, stage);
                let alone = front.before(&drop, family, shape, LIVE_REPEAT, stage);
                let both = front.before(&next, family, shape, LIVE_REPEAT, stage);
                Sample { bare, ns: both - alone + bare }
            };
            let samples: Vec<_> = (0..rounds).map(sample).collect();
            (front, samples)
        });
        self.front = front;
        samples
    }
}

/// Two CPUs at once; the time of one of them, both running.
fn on_two_cpus(program: &mut Program, frame: &[u8], rounds: usize) -> Vec<f64> {
    let runners = [program.runner(), program.runner()];
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        let threads: Vec<_> = runners
            .iter()
            .enumerate()
            .map(|(cpu, runner)| {
                let barrier = &barrier;
                scope.spawn(move || {
                    sandbox::pin_to_cpu(cpu);
                    let round = |_| {
                        barrier.wait();
                        // Long enough that both run at once for most of it.
                        runner.run(frame, 10 * REPEAT).ns
                    };
                    (0..rounds).map(round).collect::<Vec<_>>()
                })
            })
            .collect();
        let mut times = threads.into_iter().map(|thread| thread.join().expect("a runner"));
        times.next().expect("the first CPU")
    })
}

fn print(report: &Report, markdown: bool) {
    println!(
        "Linux {}, {} CPUs; a bare XDP_DROP takes {:.0} ns here\n",
        report.kernel, report.cpus, report.bare_drop_ns
    );
    print_rows(&report.rows, markdown);
    if let Some(bare) = report.live_bare_drop_ns {
        println!(
            "\nPackets received through a veth, up to where each tool drops them; a bare XDP_DROP \
             takes {bare:.0} ns there\n"
        );
        print_rows(&report.live_rows, markdown);
    }
    if report.live_refused {
        println!(
            "\nPackets received through a veth are NOT measured: this kernel does not permit test \
             runs that hand frames to the network stack (BPF_F_TEST_XDP_LIVE_FRAMES), not even to \
             root."
        );
    }
    let missed = report.rows.iter().filter_map(Row::missed).collect::<Vec<_>>();
    if !missed.is_empty() {
        println!("\nGoals missed: {}.", missed.join("; "));
    }
    println!(
        "\nThe verifier walks through so many instructions; bytes as translated, and as machine code:\n"
    );
    print_sizes(&report.programs, markdown);
    println!(
        "\nThe daemon under a flood on every CPU, while its page and its metrics are read each \
         second:\n"
    );
    print_watched(&report.watched, markdown);
}

fn print_watched(watched: &[Watched], markdown: bool) {
    let (edge, bar) = if markdown { ("| ", " | ") } else { ("", "  ") };
    let end = if markdown { " |" } else { "" };
    let row = |cells: [&str; 8]| {
        let [sources, received, cpu, samples, lost, page, metrics, series] = cells;
        println!(
            "{edge}{sources:>8}{bar}{received:>10}{bar}{cpu:>8}{bar}{samples:>9}{bar}{lost:>4}{bar}\
             {page:>8}{bar}{metrics:>11}{bar}{series:>6}{end}"
        );
    };
    row([
        "sources",
        "received/s",
        "of a CPU",
        "samples/s",
        "lost",
        "page, ms",
        "metrics, ms",
        "series",
    ]);
    if markdown {
        println!("|--:|--:|--:|--:|--:|--:|--:|--:|");
    }
    for it in watched {
        row([
            &it.sources.to_string(),
            &format!("{:.0}", it.received_per_second),
            &format!("{:.1} %", 100.0 * it.cpu_share),
            &format!("{:.0}", it.samples_per_second),
            &it.samples_lost.to_string(),
            &format!("{:.0}", it.page_ms),
            &format!("{:.0}", it.metrics_ms),
            &it.series.to_string(),
        ]);
    }
}

fn print_sizes(programs: &[Size], markdown: bool) {
    let (edge, bar) = if markdown { ("| ", " | ") } else { ("", "  ") };
    let end = if markdown { " |" } else { "" };
    let row = |cells: [&str; 4]| {
        let [program, verified, translated, jited] = cells;
        println!("{edge}{program:<18}{bar}{verified:>9}{bar}{translated:>11}{bar}{jited:>9}{end}");
    };
    row(["", "verified", "translated", "machine"]);
    if markdown {
        println!("|---|--:|--:|--:|");
    }
    for size in programs {
        let numbers = [size.verified_instructions, size.translated_bytes, size.jited_bytes];
        let [verified, translated, jited] = numbers.map(|number| number.to_string());
        row([size.program, &verified, &translated, &jited]);
    }
}

fn print_rows(rows: &[Row], markdown: bool) {
    let (edge, bar) = if markdown { ("| ", " | ") } else { ("", "  ") };
    let end = if markdown { " |" } else { "" };
    println!(
        "{edge}{:<34}{bar}{:<6}{bar}{:<18}{bar}{:>9}{bar}{:>9}{bar}{:>12}{bar}{:>5}{end}",
        "", "", "", "least, ns", "median", "x bare drop", "goal"
    );
    if markdown {
        println!("|---|---|---|--:|--:|--:|--:|");
    }
    for row in rows {
        let goal = row.goal.map_or_else(String::new, |goal| format!("{goal:.1}"));
        println!(
            "{edge}{:<34}{bar}{:<6}{bar}{:<18}{bar}{:>9.0}{bar}{:>9.0}{bar}{:>12.2}{bar}{goal:>5}{end}",
            row.name, row.family, row.tool, row.ns_least, row.ns_median, row.ratio
        );
    }
}
