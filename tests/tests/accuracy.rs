//! Two CPUs on one bucket, at every level: what is admitted is the burst, the
//! rate, and at most the stated excess.

use std::{
    sync::Barrier,
    time::{Duration, Instant},
};

use limiter_common::{
    level::Level,
    limit::{Limit, Rate},
    policy::{Mode, Policy, Ruleset},
    verdict::{Reason, Verdict},
};
use limiter_tests::{
    cases::wide_gate,
    front::{Family, Front, Shape, Stage},
    program::{Program, cpus},
    sandbox,
};

const SECOND_NS: u64 = 1_000_000_000;
const TIME: Duration = Duration::from_millis(1500);

/// Sources that share a bucket of this level, and nothing narrower.
fn shape(level: Level) -> Shape {
    let mask = match level {
        Level::SourcePackets | Level::SourceBytes => 0,
        Level::PrefixPackets | Level::PrefixBytes => 0xff,
        Level::TotalPackets | Level::TotalBytes => 0xffff,
    };
    Shape { mask, ..Shape::default() }
}

/// Offers far more than the rate (in the level's tokens per second) on two
/// CPUs. Says what share of burst + rate * t was admitted.
fn share(level: Level, family: Family, per_second: u64, strict: bool) -> f64 {
    let cpus = cpus();
    let frame = family.frame();
    let cost = level.cost(u32::try_from(frame.len()).expect("a frame"));
    let rate = match cost {
        1 => Rate::packets(per_second, SECOND_NS),
        _ => Rate::bytes(per_second, SECOND_NS),
    };
    // Half a second, so that no tokens are lost while the kernel pauses between
    // two runs of a program, or the host between two of this machine.
    let burst = u32::try_from(per_second / 2).expect("a burst");
    let limit = Limit::compile(rate.expect("in range"), burst, cpus, strict).expect("a burst");
    let mut rules = Ruleset::new(false, wide_gate(cpus));
    rules.set_policy(0, Policy::new(Mode::Enforce).with(level, limit));
    rules.set_every_kind(0);
    let mut program = Program::load(rules, 1, 131_072);
    let runners: Vec<_> = (0..cpus).map(|_| program.runner()).collect();
    // So that no time is measured in which nobody sends.
    let mut fronts: Vec<_> = (0..cpus).map(|_| Front::load()).collect();
    let barrier = Barrier::new(runners.len());
    let start = Instant::now();
    std::thread::scope(|scope| {
        for (cpu, (runner, front)) in runners.iter().zip(&mut fronts).enumerate() {
            let barrier = &barrier;
            scope.spawn(move || {
                sandbox::pin_to_cpu(cpu);
                barrier.wait();
                while start.elapsed() < TIME {
                    let fd = runner.fd();
                    let _ns = front.before(fd, family, shape(level), 300_000, Stage::Alone);
                }
            });
        }
    });
    let passed = u64::try_from(start.elapsed().as_nanos()).expect("a short time");
    let admitted = program.packets(Verdict::Pass, Reason::WithinLimit) * u64::from(cost);
    let counts = program.counts();
    let offered: u64 = counts.iter().map(|count| count.counter.packets).sum();
    let offered = offered * u64::from(cost);
    let refused = program.packets(Verdict::Drop, level.reason()) * u64::from(cost);
    let rest = program.packets(Verdict::Drop, Reason::Contended) * u64::from(cost);
    assert_eq!(offered, admitted + refused + rest, "{counts:?}");
    let earned = u128::from(per_second) * u128::from(passed) / u128::from(SECOND_NS);
    let ideal = u64::from(burst) + u64::try_from(earned).expect("a number");
    let excess = u64::from(cpus) * u64::from(limit.lease() - 1);
    println!(
        "{level:?} {family:?} {per_second}/s strict {strict}: {admitted} of {ideal} tokens \
         admitted, {offered} offered, excess allowed {excess}"
    );
    assert!(offered > 2 * ideal, "the load was too small to say anything: {offered} tokens");
    assert!(excess <= u64::from(burst) / 2, "{excess}");
    assert!(admitted <= ideal + excess, "{admitted} > {ideal} + {excess}");
    admitted as f64 / ideal as f64
}

#[test]
fn packets_of_every_level_are_exact_on_two_cpus() {
    sandbox::enter();
    for (level, family) in [
        (Level::SourcePackets, Family::V4),
        (Level::SourcePackets, Family::V6),
        (Level::PrefixPackets, Family::V4),
        (Level::PrefixPackets, Family::V6),
        (Level::TotalPackets, Family::V4),
    ] {
        for per_second in [1_000, 100_000, 1_000_000] {
            let share = share(level, family, per_second, false);
            assert!((0.93..=1.00).contains(&share), "{level:?} {family:?}: {share}");
        }
    }
}

#[test]
fn bytes_of_every_level_are_exact_on_two_cpus() {
    sandbox::enter();
    for (level, family) in [
        (Level::SourceBytes, Family::V4),
        (Level::SourceBytes, Family::V6),
        (Level::PrefixBytes, Family::V4),
        (Level::PrefixBytes, Family::V6),
        (Level::TotalBytes, Family::V4),
    ] {
        for per_second in [100_000, 10_000_000, 60_000_000] {
            let share = share(level, family, per_second, false);
            assert!((0.93..=1.00).contains(&share), "{level:?} {family:?}: {share}");
        }
    }
}

#[test]
fn strict_limits_have_no_excess_at_all() {
    sandbox::enter();
    for level in Level::ALL {
        let per_second = if level.cost(2) == 1 { 10_000 } else { 1_000_000 };
        let share = share(level, Family::V4, per_second, true);
        assert!((0.9..=1.0).contains(&share), "{level:?}: {share}");
    }
}
