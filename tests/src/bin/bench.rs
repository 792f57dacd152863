//! Nanoseconds per packet, as ratios to a bare `XDP_DROP` of the same run.
//!
//! `BPF_PROG_TEST_RUN` repeats a packet in the kernel, which measures the time
//! itself. Where the source must change, a program in front writes it and goes
//! on to the one under test; its own cost, measured with a bare `XDP_DROP`
//! behind it, is subtracted.

use std::{process::ExitCode, sync::Barrier};

use aya::{
    Ebpf,
    maps::{Array, ProgramArray},
    programs::{TestRun as _, TestRunOptions, Xdp},
};
use clap::Parser;
use limiter_common::policy::Ruleset;
use limiter_tests::{
    program::{Program, Runner, cpus},
    sandbox,
    wire::{Ipv4, Ipv6, Udp},
};
use limiter_user::{
    object,
    policies::{AllowanceChange, Change, Policies},
    sizing::{Sizing, Wish},
};
use serde::Serialize;

/// Repeats of one measurement.
const REPEAT: u32 = 400_000;

/// Measures nanoseconds per packet.
#[derive(Parser)]
struct Arguments {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Print the table in Markdown, as it stands in the README
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Measurements of each row; the median is shown
    #[arg(long, default_value_t = 9)]
    rounds: usize,
}

/// One row: what was measured.
#[derive(Serialize)]
struct Row {
    name: &'static str,
    family: &'static str,
    ns_least: f64,
    ns_median: f64,
    ratio: f64,
}

/// Everything that was measured.
#[derive(Serialize)]
struct Report {
    schema_version: u32,
    kernel: String,
    cpus: u32,
    bare_drop_ns: f64,
    rows: Vec<Row>,
    verified_instructions: u32,
    translated_bytes: u32,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if !rustix::process::geteuid().is_root() {
        eprintln!("bench: it loads programs into the kernel and needs root; run it with sudo");
        return ExitCode::FAILURE;
    }
    sandbox::enter();
    sandbox::pin_to_cpu(usize::from(cpus() > 1));
    let report = measure(arguments.rounds.max(1));
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report).expect("JSON"));
    } else {
        print(&report, arguments.markdown);
    }
    ExitCode::SUCCESS
}

/// Address family of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Family {
    const fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// A small UDP packet, below every size class that differs.
    fn frame(self) -> Vec<u8> {
        let datagram = Udp::new(4000, 9).payload(18);
        match self {
            Self::V4 => Ipv4::new("198.18.0.1", "198.18.255.254").next(17, &datagram).build(),
            Self::V6 => Ipv6::new("2001:db8::1", "2001:db8:ffff::1").next(17, &datagram).build(),
        }
    }
}

/// The program that writes sources, and the bare one.
struct Front {
    ebpf: Ebpf,
}

impl Front {
    fn load() -> Self {
        let object = object::BENCH.expect("a build with a BPF compiler: cargo xtask bench");
        let mut ebpf = Ebpf::load(object).expect("loading the benchmark's programs");
        for name in ["bare_drop", "random_source4", "random_source6"] {
            Self::program(&mut ebpf, name).load().expect("loading a program");
        }
        Self { ebpf }
    }

    fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> &'a mut Xdp {
        ebpf.program_mut(name).expect("a program").try_into().expect("an XDP program")
    }

    fn bare(&mut self, frame: &[u8]) -> f64 {
        run(Self::program(&mut self.ebpf, "bare_drop"), frame)
    }

    /// Time of the front and what is behind it; `None` for a bare drop.
    fn behind(&mut self, family: Family, mask: u32, next: Option<&Runner>) -> f64 {
        let bare = Self::program(&mut self.ebpf, "bare_drop").fd().expect("loaded");
        let bare = bare.try_clone().expect("a descriptor");
        let next = next.map_or(&bare, |runner| runner.fd());
        let mut slots: ProgramArray<_> =
            self.ebpf.map_mut("NEXT").expect("a map").try_into().expect("its type");
        slots.set(0, next, 0).expect("setting the next program");
        let mut masks: Array<_, u32> =
            self.ebpf.map_mut("MASK").expect("a map").try_into().expect("its type");
        masks.set(0, mask, 0).expect("setting the mask");
        let name = match family {
            Family::V4 => "random_source4",
            Family::V6 => "random_source6",
        };
        run(Self::program(&mut self.ebpf, name), &family.frame())
    }
}

fn run(program: &Xdp, frame: &[u8]) -> f64 {
    let options =
        TestRunOptions { data_in: Some(frame), repeat: REPEAT, ..TestRunOptions::default() };
    program.test_run(options).expect("BPF_PROG_TEST_RUN").duration.as_nanos() as f64
}

/// The built-in profile, UDP at this rate and burst.
fn profile(rate: &str, burst: &str) -> Ruleset {
    let source = AllowanceChange {
        rate: Some(rate.parse().expect("a rate")),
        burst: Some(burst.parse().expect("a burst")),
        ..AllowanceChange::default()
    };
    let change = Change { source, ..Change::default() };
    let policies = Policies::builtin(false).changed("udp", change).expect("the policy");
    policies.compile(sizing()).expect("in range")
}

fn sizing() -> Sizing {
    Sizing::new(cpus(), 1, Wish::Default).expect("the default")
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
    fn new(name: &'static str, family: Family, samples: &[Sample]) -> Self {
        Self {
            name,
            family: family.name(),
            ns_least: samples.iter().map(|sample| sample.ns).fold(f64::INFINITY, f64::min),
            ns_median: median(samples.iter().map(|sample| sample.ns)),
            ratio: median(samples.iter().map(|sample| sample.ns / sample.bare)),
        }
    }
}

fn measure(rounds: usize) -> Report {
    let mut front = Front::load();
    let sources = sizing().max_sources;
    let denied = profile("1/s", "10");
    let admitted = profile("10M/s", "4G");
    let mut program = Program::load(&denied, 6, sources);
    let runner = program.runner();
    let info = runner.info();
    let mut rows = Vec::new();
    for family in [Family::V4, Family::V6] {
        let frame = family.frame();
        for (name, rules) in [("one source, denied", &denied), ("one source, admitted", &admitted)]
        {
            program.plane().set_rules(rules).expect("setting rules");
            let _warm = runner.run(&frame, REPEAT);
            let sample = |_| Sample { bare: front.bare(&frame), ns: runner.run(&frame, REPEAT).ns };
            rows.push(Row::new(name, family, &(0..rounds).map(sample).collect::<Vec<_>>()));
        }
        program.plane().set_rules(&denied).expect("setting rules");
        for (name, mask) in
            [("64k resident sources", 0xffff), ("random, of 2^32 sources", u32::MAX)]
        {
            let _warm = front.behind(family, mask, Some(&runner));
            let sample = |_| {
                let bare = front.bare(&frame);
                let alone = front.behind(family, mask, None);
                Sample { bare, ns: front.behind(family, mask, Some(&runner)) - alone + bare }
            };
            rows.push(Row::new(name, family, &(0..rounds).map(sample).collect::<Vec<_>>()));
        }
        if cpus() > 1 {
            program.plane().set_rules(&admitted).expect("setting rules");
            let name = "one admitted source on two CPUs";
            let bare: Vec<_> = (0..rounds).map(|_| front.bare(&frame)).collect();
            let times = on_two_cpus(&mut program, &frame, rounds);
            let samples = times.into_iter().zip(bare).map(|(ns, bare)| Sample { ns, bare });
            rows.push(Row::new(name, family, &samples.collect::<Vec<_>>()));
        }
    }
    let frame = Family::V4.frame();
    Report {
        schema_version: 1,
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        cpus: cpus(),
        bare_drop_ns: median((0..rounds).map(|_| front.bare(&frame))),
        rows,
        verified_instructions: info.verified_instruction_count().unwrap_or_default(),
        translated_bytes: info.size_translated().unwrap_or_default(),
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
    let (edge, bar) = if markdown { ("| ", " | ") } else { ("", "  ") };
    let end = if markdown { " |" } else { "" };
    println!(
        "Linux {}, {} CPUs; a bare XDP_DROP takes {:.0} ns here\n",
        report.kernel, report.cpus, report.bare_drop_ns
    );
    println!(
        "{edge}{:<34}{bar}{:<6}{bar}{:>9}{bar}{:>9}{bar}{:>12}{end}",
        "", "", "least, ns", "median", "x bare drop"
    );
    if markdown {
        println!("|---|---|--:|--:|--:|");
    }
    for row in &report.rows {
        println!(
            "{edge}{:<34}{bar}{:<6}{bar}{:>9.0}{bar}{:>9.0}{bar}{:>12.2}{end}",
            row.name, row.family, row.ns_least, row.ns_median, row.ratio
        );
    }
    println!(
        "\nthe program: {} instructions verified, {} bytes translated",
        report.verified_instructions, report.translated_bytes
    );
}
