//! Floods of spoofed sources against the loaded program: who was there before
//! keeps his bucket and loses no packet, and what the flood gets through stays
//! within the stated caps.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use limiter_common::{
    level::{Level, Number, limit_number},
    limit::Limit,
    source::{Key as _, Key4, Key6, Seed, SourcePrefix},
    tracked::Place,
    verdict::{Reason, Verdict},
};
use limiter_tests::{
    front::{Family, Front, Shape, Stage},
    program::{Program, cpus},
    sandbox,
    wire::{Ipv4, Ipv6, Tcp},
};
use limiter_user::{
    change::{Change, LevelChange},
    gate::Gate,
    plane::Count,
    policies::Policies,
    rate::Burst,
    sizing::{Sizing, Wish},
};

/// Sources that were there before; a small table gives fewer at once a whole
/// burst.
const POLITE: u32 = 1_000;
const POLITE_IN_SMALL: u32 = 500;
/// Time between two packets of each of them.
const PERIOD: Duration = Duration::from_millis(500);
/// The longest that the default budget for new sources keeps them for.
const LONGEST_PERIOD: Duration = Duration::from_secs(3);
/// No more packets than that are sent by one of them.
const POLITE_BURST: u32 = 100;
/// The least table by default.
const SMALL: Wish = Wish::Sources(16_384);
/// Packets of a flood between two looks at the time.
const CHUNK: u32 = 200_000;

/// Where the flood's sources lie.
#[derive(Clone, Copy, Debug)]
enum Aim {
    /// All of 2^32 addresses or /64s.
    Everywhere,
    /// All addresses of one IPv4 /24, or random ones of one IPv6 /64.
    OnePrefix,
    /// All /64s of one IPv6 /48.
    OneSite,
    /// Sources that share one bit and one home by a hash without its seed.
    TheHash,
}

/// Spoofed packets of one flood, at least, and for how long it lasts: longer
/// than two epochs of the tracked keys, so that they age.
fn extent() -> (u64, Duration) {
    let quick = std::env::var_os("LIMITER_QUICK").is_some();
    if quick { (2_000_000, Duration::from_secs(2)) } else { (20_000_000, Duration::from_secs(10)) }
}

fn sizing(wish: Wish) -> Sizing {
    Sizing::new(cpus(), 1, wish).expect("in range")
}

/// The built-in profile: its indices of TCP and UDP.
const TCP: u32 = 1;
const UDP: u32 = 2;

/// The polite ones send TCP, so that they are counted apart.
fn polite_frame(family: Family) -> Vec<u8> {
    let segment = Tcp::new(4000, 443).flags(0x10).build();
    match family {
        Family::V4 => Ipv4::new("198.18.0.1", "192.0.2.1").next(6, &segment).build(),
        Family::V6 => Ipv6::new("2001:db8::1", "2001:db8::2").next(6, &segment).build(),
    }
}

/// Sources that share their place and their home if the hash has no seed.
fn aimed_at_the_hash(family: Family) -> Vec<u32> {
    const SEED: Seed = [0, 0];
    let limit = limit_number(Number::new(UDP, 0), Level::SourcePackets);
    let spread = |source: u32| match family {
        Family::V4 => Key4::new(source.to_be(), &SourcePrefix::DEFAULT, limit).spread(SEED),
        Family::V6 => {
            let address = [0x2001_0db8_u32.to_be(), source.to_be(), 0, 0];
            Key6::new(address, &SourcePrefix::DEFAULT, limit).spread(SEED)
        }
    };
    let target = Place::of(spread(1)).word();
    (1..u32::MAX)
        .filter(|source| Place::of(spread(*source)).word() == target)
        .take(16_384)
        .collect()
}

fn packets(counts: &[Count], policy: u32, verdict: Verdict, reason: Reason) -> u64 {
    let wanted =
        |count: &&Count| (count.policy, count.verdict, count.reason) == (policy, verdict, reason);
    counts.iter().find(wanted).map_or(0, |count| count.counter.packets)
}

/// The built-in profile, UDP tighter than built in, so that floods from few
/// sources are dropped too; and TCP with tokens that do not come back, so that
/// a bucket tells how many packets it has seen.
fn policies() -> Policies {
    let change = |rate: &str, burst: u32, strict: bool| Change {
        source: LevelChange {
            rate: Some(rate.parse().expect("a rate")),
            burst: Some(Burst(burst)),
            ..LevelChange::default()
        },
        strict: Some(strict),
        ..Change::default()
    };
    let policies = Policies::builtin(false).changed("udp", &change("100/s", 200, false));
    let policies =
        policies.expect("the policy").changed("tcp", &change("1/day", POLITE_BURST, true));
    policies.expect("the policy")
}

/// Packets that each of the polite buckets has admitted since it was made.
fn admitted_by_polite_buckets(program: &mut Program, family: Family) -> Vec<u64> {
    let number = limit_number(Number::new(TCP, 0), Level::SourcePackets);
    let polite = policies().find("tcp").expect("the policy").source().packets.expect("a rate");
    let limit = Limit::compile(polite.0.0, polite.1.0, cpus(), true).expect("in range");
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = u64::try_from(now.tv_sec).expect("uptime") * 1_000_000_000;
    // Tokens that are missing, each of which takes a day: so the seconds that
    // have passed since do not count.
    let missing = |tat: u64| tat.saturating_sub(limit.time(now)).div_ceil(limit.duration(1));
    let buckets = match family {
        Family::V4 => program.buckets4(|key| key.limit == number),
        Family::V6 => program.buckets6(|key| key.limit == number),
    };
    buckets.into_iter().map(missing).collect()
}

/// One flood on every CPU; the polite ones keep sending. Everything that is
/// claimed is checked here.
fn survive(family: Family, aim: Aim) {
    survive_in(family, aim, Wish::Default, POLITE, PERIOD);
}

/// The same with tables of another size, and a packet of each polite source in
/// another time.
fn survive_in(family: Family, aim: Aim, wish: Wish, polite: u32, period: Duration) {
    sandbox::enter();
    let sizing = sizing(wish);
    let policies = policies();
    let rules = policies.compile(sizing).expect("in range");
    let mut program = Program::load(rules, 6, sizing.max_sources);
    // The polite ones, somewhere in the flood's range.
    let sources: Vec<u32> = (0..polite).map(|n| n.wrapping_mul(0x9e37_79b9)).collect();
    let aimed = aimed_at_the_hash(family);
    let listed = |first: usize, listed: usize| Shape {
        listed: u32::try_from(listed).expect("few"),
        first: u32::try_from(first).expect("few"),
        mask: u32::MAX,
        ..Shape::default()
    };
    let shape = match (aim, family) {
        (Aim::Everywhere, _) => Shape { mask: u32::MAX, ..Shape::default() },
        (Aim::OnePrefix, Family::V4) => Shape { mask: 0xff, ..Shape::default() },
        (Aim::OnePrefix, Family::V6) => Shape { host_mask: u32::MAX, ..Shape::default() },
        (Aim::OneSite, _) => Shape { mask: 0xffff, ..Shape::default() },
        (Aim::TheHash, _) => listed(sources.len(), aimed.len()),
    };
    let list = [sources, aimed].concat();
    let runners: Vec<_> = (0..cpus()).map(|_| program.runner()).collect();
    let ours = runners[0].fd().try_clone().expect("a descriptor");

    let mut front = Front::load();
    front.list(&list);
    let frame = polite_frame(family);
    let mut rounds = 0u64;
    let mut send_polite = |front: &mut Front| {
        let shape = listed(0, polite as usize);
        front.send(&ours, family, &frame, shape, polite);
        rounds += 1;
    };
    // Warm: each has a bucket.
    send_polite(&mut front);
    let start = Instant::now();
    let done = AtomicBool::new(false);
    let (least, time) = extent();
    let each = least / u64::from(cpus());
    std::thread::scope(|scope| {
        for (cpu, runner) in runners.iter().enumerate() {
            let (list, done) = (&list, &done);
            scope.spawn(move || {
                sandbox::pin_to_cpu(cpu);
                let mut front = Front::load();
                front.list(list);
                let mut sent = 0;
                while sent < each || !done.load(Ordering::Relaxed) {
                    let _ns = front.before(runner.fd(), family, shape, CHUNK, Stage::Alone);
                    sent += u64::from(CHUNK);
                }
            });
        }
        while start.elapsed() < time {
            let due = start.elapsed();
            send_polite(&mut front);
            std::thread::sleep((due + period).saturating_sub(start.elapsed()));
        }
        done.store(true, Ordering::Relaxed);
    });
    let passed = start.elapsed().as_secs_f64();
    send_polite(&mut front);

    let counts = program.counts();
    let count = |policy, verdict, reason| packets(&counts, policy, verdict, reason);
    let sent = rounds * u64::from(polite);
    let flood: u64 = counts.iter().filter(|it| it.policy == UDP).map(|it| it.counter.packets).sum();
    let untracked = count(UDP, Verdict::Pass, Reason::Untracked);
    let tracked = count(UDP, Verdict::Pass, Reason::WithinLimit);
    println!(
        "{family:?} {aim:?}: {flood} spoofed packets in {passed:.1} s, passed {untracked} untracked \
         and {tracked} tracked; {sent} polite packets"
    );
    assert!(flood >= least, "{flood}");
    // Not one polite packet was dropped.
    assert_eq!(count(TCP, Verdict::Pass, Reason::WithinLimit), sent, "{counts:?}");
    // Not one polite bucket is gone, nor was it ever: each has counted all.
    assert!(rounds <= u64::from(POLITE_BURST));
    let admitted = admitted_by_polite_buckets(&mut program, family);
    assert_eq!(admitted.len(), polite as usize, "polite buckets left");
    assert!(admitted.iter().all(|packets| *packets == rounds), "{rounds} packets: {admitted:?}");
    // Nothing of ours was in trouble.
    assert!(counts.iter().all(|count| !count.reason.is_trouble()), "{counts:?}");

    // What the flood got through: the cap, and the limits of those that were
    // given a bucket.
    let gate = Gate::default();
    let within = |rate: limiter_user::rate::PacketRate, burst: f64| {
        burst + rate.per_second() * passed * 1.001 + f64::from(64 * cpus())
    };
    let cap = gate.untracked(sizing);
    let cap = within(cap, cap.per_second() / 10.0);
    assert!(untracked as f64 <= cap, "{untracked} untracked packets passed, the cap is {cap}");
    let new = gate.new_sources(sizing);
    let new = within(new, f64::from(new.one_second().0));
    let limit = policies.find("udp").expect("the policy").source().packets.expect("a rate");
    let sources = match aim {
        Aim::Everywhere => new,
        Aim::OnePrefix if family == Family::V4 => 256.0,
        Aim::OnePrefix => 1.0,
        Aim::OneSite => 65_536.0,
        Aim::TheHash => 16_384.0,
    };
    // A random source is seen about once by each CPU, all of which draw the
    // same numbers; each of few sources has its limit.
    let each = match aim {
        Aim::Everywhere => 1.01 * f64::from(cpus()),
        _ => f64::from(limit.1.0) * 1.5 + limit.0.per_second() * passed * 1.001,
    };
    assert!(tracked as f64 <= sources * each, "{tracked} tracked packets passed");
}

/// The budget for new sources is what half a table of inserts takes, in tables
/// of any size.
#[test]
fn a_packet_in_three_seconds_keeps_a_bucket_in_a_small_table() {
    survive_in(Family::V4, Aim::Everywhere, SMALL, POLITE_IN_SMALL, LONGEST_PERIOD);
    survive_in(Family::V6, Aim::Everywhere, SMALL, POLITE_IN_SMALL, LONGEST_PERIOD);
}

#[test]
fn polite_sources_survive_a_flood_from_everywhere() {
    survive(Family::V4, Aim::Everywhere);
}

#[test]
fn polite_sources_survive_a_flood_from_everywhere_ipv6() {
    survive(Family::V6, Aim::Everywhere);
}

#[test]
fn polite_sources_survive_a_flood_from_one_prefix() {
    survive(Family::V4, Aim::OnePrefix);
}

#[test]
fn polite_sources_survive_a_flood_from_one_prefix_ipv6() {
    survive(Family::V6, Aim::OnePrefix);
}

#[test]
fn polite_sources_survive_a_flood_from_one_site() {
    survive(Family::V6, Aim::OneSite);
}

#[test]
fn polite_sources_survive_a_flood_that_aims_at_the_hash() {
    survive(Family::V4, Aim::TheHash);
}

#[test]
fn polite_sources_survive_a_flood_that_aims_at_the_hash_ipv6() {
    survive(Family::V6, Aim::TheHash);
}
