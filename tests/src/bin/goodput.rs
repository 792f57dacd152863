//! What a polite client gets from a web server under a flood: without a
//! shield, behind nftables, and behind limiterd.
//!
//! Everything happens in network namespaces of this process, which vanish with
//! it. Each cell of the table has new ones. The server has one CPU for its
//! interface, shield, network stack and web server; flood and client run on
//! others.

use std::{
    path::PathBuf,
    process::ExitCode,
    thread::{available_parallelism, sleep},
    time::{Duration, Instant},
};

use clap::Parser;
use limiter_tests::{
    goodput::{
        client::{REQUESTS, ask},
        flood::{Flood, Kind, UNPACED},
        place::{SERVER_CPU, place},
        plot,
        report::{Cell, Report},
        shield::Shield,
        site::Site,
    },
    net::{IFACE, Net},
};

/// Frames per second; the last is as fast as possible.
const RATES: [u64; 5] = [50_000, 100_000, 200_000, 400_000, UNPACED];
const QUICK_RATES: [u64; 1] = [200_000];
const QUICK_KINDS: [Kind; 2] = [Kind::Syn, Kind::SpoofedSyn];
const QUICK_SECONDS: u32 = 2;
/// The flood is at its height, and most bursts are spent, before the first
/// request.
const HEAD_START: Duration = Duration::from_millis(1500);

/// Measures what a polite client gets from a web server under a flood.
#[derive(Parser)]
struct Arguments {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Print the table in Markdown, as it stands in the README
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Draw curves into an SVG file, too
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Seconds of requests in each cell
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=30))]
    seconds: u32,
    /// Floods of SYN packets alone, at one rate, for two seconds
    #[arg(long, conflicts_with = "seconds")]
    quick: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if !rustix::process::geteuid().is_root() {
        eprintln!("goodput: it makes network namespaces and needs root; run it with sudo");
        return ExitCode::FAILURE;
    }
    let cpus = available_parallelism().expect("the number of CPUs").get();
    if cpus <= SERVER_CPU {
        eprintln!("goodput: it needs two CPUs, one of them for the server");
        return ExitCode::FAILURE;
    }
    let seconds = if arguments.quick { QUICK_SECONDS } else { arguments.seconds };
    let plan = plan(arguments.quick);
    // Whatever hangs, this ends, and the kernel ends what it has started.
    let most = Duration::from_secs(u64::from(seconds) + 30) * plan.len().try_into().expect("few");
    std::thread::spawn(move || {
        sleep(most);
        eprintln!("goodput: gave up after {most:?}");
        std::process::exit(1);
    });
    // What is for other programs or the README comes alone, at the end.
    let is_table = !arguments.json && !arguments.markdown;
    let say = |line: String| if is_table { println!("{line}") } else { eprintln!("{line}") };
    say(Report::heading());
    let mut cells = Vec::new();
    for (flood, shield) in plan {
        let cell = measure(flood, shield, seconds);
        say(cell.line());
        cells.push(cell);
    }
    let report = Report {
        schema_version: 1,
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        cpus,
        requests_per_second: REQUESTS,
        seconds,
        cells,
    };
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report).expect("JSON"));
    } else if arguments.markdown {
        print!("{}", report.markdown());
    } else {
        println!("\n{}", report.conditions());
    }
    if let Some(file) = arguments.plot {
        plot::draw(&report, &file);
    }
    ExitCode::SUCCESS
}

/// The cells: first calm, then each flood, each rate, each shield.
fn plan(quick: bool) -> Vec<(Option<(Kind, u64)>, Shield)> {
    let (kinds, rates) =
        if quick { (&QUICK_KINDS[..], &QUICK_RATES[..]) } else { (&Kind::ALL[..], &RATES[..]) };
    let floods = kinds.iter().flat_map(|kind| rates.iter().map(move |rate| (*kind, *rate)));
    let floods = [None].into_iter().chain(floods.map(Some));
    floods.flat_map(|flood| Shield::ALL.map(|shield| (flood, shield))).collect()
}

/// Frames that the attacker has sent, and those of them that the server has
/// got.
fn flooded(net: &Net) -> (u64, u64) {
    // What finds the next queue full counts as not sent by a veth, but it was.
    let attacker = net.attacker.packets(IFACE);
    (
        attacker.sent + attacker.unsent,
        net.handed_to_server().saturating_sub(net.client.packets(IFACE).sent),
    )
}

fn measure(flood: Option<(Kind, u64)>, shield: Shield, seconds: u32) -> Cell {
    let net = place();
    let _site = Site::start(&net.server, SERVER_CPU);
    let _shield = shield.raise(&net.server);
    if flood.is_none_or(|(kind, _)| kind.knows_users()) {
        // One visit of each user.
        let _before = ask(&net.client, 1);
    }
    let running = flood.map(|(kind, rate)| Flood::start(&net, kind, rate));
    sleep(HEAD_START);
    let (start, before) = (Instant::now(), flooded(&net));
    let answers = ask(&net.client, seconds);
    let (time, after) = (start.elapsed().as_secs_f64(), flooded(&net));
    if let Some(running) = running {
        running.finish();
    }
    let ms = |seconds: Option<f64>| seconds.map(|seconds| seconds * 1e3);
    Cell {
        flood: flood.map(|(kind, _)| kind),
        shield,
        flood_asked_per_second: match flood {
            None => Some(0),
            Some((_, UNPACED)) => None,
            Some((_, rate)) => Some(rate),
        },
        flood_sent_per_second: (after.0 - before.0) as f64 / time,
        flood_received_per_second: after.1.saturating_sub(before.1) as f64 / time,
        requests: answers.requests,
        answered: answers.answered,
        answered_per_second: f64::from(answers.answered) / f64::from(seconds),
        success_ratio: f64::from(answers.answered) / f64::from(answers.requests),
        p50_ms: ms(answers.p50),
        p99_ms: ms(answers.p99),
        max_ms: ms(answers.max),
    }
}
