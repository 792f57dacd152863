//! The leased bucket against a slow, exact one.
//!
//! The exact bucket counts in fractions of a token (tokens times the period in
//! nanoseconds), so nothing is ever rounded. It judges each step twice:
//! whatever the leased bucket admits must be there in an exact bucket that is
//! larger by the stated excess N(L-1), and whatever it denies must be missing
//! from an exact bucket that is poorer by what other CPUs may hold.
use std::cell::Cell;

use limiter_common::{
    bucket::{Charge, Clock, Lease, LeaseCell, Word, charge},
    limit::{Limit, Rate, SLACK_NS},
};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;
/// Ticks between two packets over which no denial lasts.
const APART: u64 = 1000;
/// The arithmetic holds for 36 years after the boot.
const LATEST: u64 = 36 * 365 * DAY;

struct Exact {
    tokens: u128,
    period: u128,
    /// Level and depth, in tokens times `period`.
    level: u128,
    depth: u128,
    latest: u64,
}

impl Exact {
    fn new(rate: Rate, depth: u64, now: u64) -> Self {
        let period = u128::from(rate.period_ns());
        let depth = u128::from(depth) * period;
        Self { tokens: u128::from(rate.tokens()), period, level: depth, depth, latest: now }
    }

    /// Lets time pass; a clock that goes back stands still.
    fn advance(&mut self, now: u64) {
        let passed = u128::from(now.saturating_sub(self.latest));
        self.latest = self.latest.max(now);
        self.level = (self.level + passed * self.tokens).min(self.depth);
    }

    /// Adds what the clock gave by going back and forth.
    fn forgive(&mut self, ns: u64) {
        self.level += u128::from(ns) * self.tokens;
        self.depth += u128::from(ns) * self.tokens;
    }

    fn holds(&self, tokens: u64) -> bool {
        self.level >= u128::from(tokens) * self.period
    }

    fn take(&mut self, tokens: u64) {
        self.level = self.level.saturating_sub(u128::from(tokens) * self.period);
    }
}

struct Shared<'a>(&'a Cell<u64>);

impl Word for Shared<'_> {
    fn load(&self) -> u64 {
        self.0.get()
    }

    fn replace(&self, current: u64, new: u64) -> bool {
        let same = self.0.get() == current;
        if same {
            self.0.set(new);
        }
        same
    }
}

#[derive(Default)]
struct Cpu(Cell<Lease>);

impl LeaseCell for Cpu {
    fn get(&self) -> Lease {
        self.0.get()
    }

    fn set(&self, lease: Lease) {
        self.0.set(lease);
    }
}

struct At<'a> {
    ns: u64,
    tick: u64,
    read: &'a Cell<bool>,
}

impl Clock for At<'_> {
    fn now_ns(&self) -> u64 {
        self.read.set(true);
        self.ns
    }

    fn coarse_ns(&self) -> u64 {
        unreachable!("not a bucket's clock")
    }

    fn boot_ns(&self) -> u64 {
        unreachable!("not a bucket's clock")
    }

    fn tick(&self) -> u64 {
        self.tick
    }
}

/// A bucket as N CPUs see it.
struct Machine {
    word: Cell<u64>,
    cpus: Vec<Cpu>,
    /// Whether the last packet had the clock read.
    read: Cell<bool>,
}

impl Machine {
    fn new(cpus: u32) -> Self {
        let cpus = (0..cpus).map(|_| Cpu::default()).collect();
        Self { word: Cell::new(0), cpus, read: Cell::new(false) }
    }

    /// Charges a packet of this number, so late that no denial is remembered.
    fn charge_apart(&self, limit: &Limit, cpu: u32, ns: u64, packet: u32) -> bool {
        self.charge(limit, cpu, ns, u64::from(packet) * APART)
    }

    fn charge(&self, limit: &Limit, cpu: u32, ns: u64, tick: u64) -> bool {
        self.charge_cost(limit, 1, cpu, ns, tick)
    }

    fn charge_cost(&self, limit: &Limit, cost: u32, cpu: u32, ns: u64, tick: u64) -> bool {
        let cell = &self.cpus[cpu as usize % self.cpus.len()];
        self.read.set(false);
        let at = At { ns, tick, read: &self.read };
        match charge(limit, cost, cell, || Some(Shared(&self.word)), &at) {
            Charge::Admitted => true,
            Charge::Exhausted => false,
            other => panic!("{other:?} without another CPU at work"),
        }
    }
}

fn excess(limit: &Limit, cpus: u32) -> u64 {
    u64::from(cpus) * u64::from(limit.lease() - 1)
}

/// One per day to ten million per second, also rates that divide nothing.
fn rates() -> impl Strategy<Value = Rate> {
    let periods = prop_oneof![Just(SECOND), Just(60 * SECOND), Just(3600 * SECOND), Just(DAY)];
    (periods, prop_oneof![1u64..=10, 1u64..=1_000_000_000_000]).prop_filter_map(
        "in range",
        |(period, tokens)| {
            let most = u128::from(period) * 10_000_000 / u128::from(SECOND);
            let tokens = u128::from(tokens).min(most);
            Rate::packets(u64::try_from(tokens).ok()?, period).ok()
        },
    )
}

fn bursts() -> impl Strategy<Value = u32> {
    prop_oneof![
        Just(1u32),
        1u32..=20,
        1u32..=10_000,
        any::<u32>().prop_map(|n| n.max(1)),
        Just(u32::MAX)
    ]
}

/// Pauses between packets: none, short, as long as some tokens take, idle for
/// up to half a year.
fn pauses(rate: Rate) -> impl Strategy<Value = u64> {
    let token = (rate.period_ns() / rate.tokens()).max(1);
    prop_oneof![
        4 => Just(0u64),
        4 => 0u64..=1_000,
        6 => 0u64..=2 * token,
        2 => 0u64..=50 * token.min(DAY),
        1 => 50 * DAY..=180 * DAY,
    ]
}

#[derive(Debug, Clone)]
struct Case {
    rate: Rate,
    burst: u32,
    cpus: u32,
    strict: bool,
    start: u64,
    /// (pause in ns, CPU, backward step in ns, packets in a row)
    steps: Vec<(u64, u32, u64, u32)>,
}

fn cases(backward: impl Strategy<Value = u64> + Clone + 'static) -> impl Strategy<Value = Case> {
    (rates(), bursts(), 1u32..=8, any::<bool>(), 0u64..=4 * 365 * DAY).prop_flat_map(
        move |(rate, burst, cpus, strict, start)| {
            let step = (pauses(rate), 0..cpus, backward.clone(), 1u32..=60);
            prop::collection::vec(step, 1..80).prop_map(move |steps| Case {
                rate,
                burst,
                cpus,
                strict,
                start,
                steps,
            })
        },
    )
}

fn compile(case: &Case) -> Limit {
    Limit::compile(case.rate, case.burst, case.cpus, case.strict).unwrap()
}

/// Runs a case; `tick` says how long a timer tick is (0: every packet comes so
/// many ticks after the last that no denial is remembered).
fn run(case: &Case, tick_ns: u64) -> Result<(), TestCaseError> {
    let limit = compile(case);
    let machine = Machine::new(case.cpus);
    let excess = excess(&limit, case.cpus);
    prop_assert!(excess <= u64::from(case.burst) / 2, "the stated bound of the excess");
    if case.strict {
        prop_assert_eq!(excess, 0);
    }
    // The compiled rate is at most 1/1024 below the one asked for.
    let slower =
        Rate::packets(case.rate.tokens() * 1023, case.rate.period_ns().saturating_mul(1024));
    let mut now = case.start;
    // The first clock to be read may be one that lies behind.
    let first = now.saturating_sub(SLACK_NS);
    let mut above = Exact::new(case.rate, u64::from(case.burst) + excess, first);
    let mut below = slower.ok().map(|rate| Exact::new(rate, u64::from(case.burst), now));
    let mut latest = now;
    let mut packet = 0u32;
    for &(pause, cpu, backward, packets) in &case.steps {
        now = (now + pause).min(LATEST);
        latest = latest.max(now);
        let at = now.saturating_sub(backward);
        if backward > SLACK_NS {
            above.forgive(backward);
        }
        if let Some(below) = &mut below {
            below.advance(at);
        }
        for _ in 0..packets {
            packet += 1;
            let tick = at.checked_div(tick_ns).unwrap_or(u64::from(packet) * APART);
            let admitted = machine.charge(&limit, cpu, at, tick);
            // Time is what was read: a leased token is spent without a look at
            // the clock, so it does not tell the bucket that time has passed.
            if machine.read.get() {
                above.advance(at);
            }
            if admitted {
                prop_assert!(above.holds(1), "admitted beyond burst + rate * t + N(L-1)");
                above.take(1);
                if let Some(below) = &mut below {
                    below.take(1);
                }
            } else {
                if let Some(below) = &below {
                    // What other CPUs hold, what a clock behind the latest
                    // does not see yet, what a denial misses that lasts until
                    // the end of a tick, and one for the unit's rounding.
                    let missed = u128::from(latest - at + tick_ns);
                    let hidden =
                        missed * u128::from(case.rate.tokens()) / u128::from(case.rate.period_ns());
                    let hidden = u64::try_from(hidden).unwrap();
                    prop_assert!(
                        !below.holds(excess + hidden + 2),
                        "denied though the tokens were there"
                    );
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Time goes forward, in any steps, on any CPU, at any uptime.
    #[test]
    fn admits_what_the_exact_bucket_admits(case in cases(Just(0))) {
        run(&case, 0)?;
    }

    /// The same where a denial is remembered until the next tick.
    #[test]
    fn a_remembered_denial_lasts_one_tick(case in cases(Just(0)), hz in prop_oneof![Just(100u64), Just(250), Just(1000)]) {
        run(&case, SECOND / hz)?;
    }

    /// Another CPU's clock lies behind by less than the slack: no excess at all.
    #[test]
    fn clocks_that_disagree_give_nothing_away(case in cases(0..=SLACK_NS)) {
        run(&case, 0)?;
    }

    /// A clock that jumps back further gives at most what the jump is worth.
    #[test]
    fn a_clock_that_jumps_back_gives_no_more_than_the_jump(case in cases(prop_oneof![Just(0), 0..=10 * DAY])) {
        run(&case, 0)?;
    }

    /// Bytes are exact as packets are: what a packet costs is what it has.
    #[test]
    fn bytes_are_exact_too(
        per_second in prop_oneof![1u64..=100_000, 1u64..=100_000_000_000],
        burst in prop_oneof![64u32..=100_000, any::<u32>().prop_map(|n| n.max(64))],
        cpus in 1u32..=8,
        strict in any::<bool>(),
        start in 0u64..=4 * 365 * DAY,
        steps in prop::collection::vec((0u64..=100_000_000, 0u32..8, 14u32..=9_000, 1u32..=40), 1..60),
    ) {
        let rate = Rate::bytes(per_second, SECOND).unwrap();
        let limit = Limit::compile(rate, burst, cpus, strict).unwrap();
        let excess = excess(&limit, cpus);
        prop_assert!(excess <= u64::from(burst) / 2);
        let machine = Machine::new(cpus);
        // A burst is rounded up to a whole unit, a sixteenth of a nanosecond.
        let unit = per_second.div_ceil(16_000_000_000);
        let most = u64::from(burst) + unit + excess;
        let mut above = Exact::new(rate, most, start.saturating_sub(SLACK_NS));
        // Half a percent for the rounding of each packet's time, and its size
        // more for that of one unit.
        let slower = Rate::bytes(per_second * 995, 1000 * SECOND);
        let mut below = slower.ok().map(|rate| Exact::new(rate, u64::from(burst), start));
        let (mut now, mut packet) = (start, 0u64);
        for (pause, cpu, cost, packets) in steps {
            now += pause;
            for _ in 0..packets {
                packet += 1;
                let admitted = machine.charge_cost(&limit, cost, cpu % cpus, now, packet * APART);
                if machine.read.get() {
                    above.advance(now);
                }
                if let Some(below) = &mut below {
                    below.advance(now);
                }
                if admitted {
                    prop_assert!(above.holds(cost.into()), "beyond burst + rate * t + N(L-1)");
                    above.take(cost.into());
                    if let Some(below) = &mut below {
                        below.take(cost.into());
                    }
                } else if let Some(below) = &below {
                    // Every packet before may have cost a unit too much.
                    let rounding = u128::from(packet) * u128::from(per_second) / 16_000_000_000;
                    let hidden = excess + u64::try_from(rounding).unwrap() + 2;
                    prop_assert!(
                        !below.holds(u64::from(cost) + hidden),
                        "denied though the bytes were there"
                    );
                }
            }
        }
    }

    /// A changed limit holds from the next packet that needs a token: of the
    /// old one only leases survive.
    #[test]
    fn a_changed_limit_holds_at_once(
        case in cases(Just(0)),
        rate in rates(),
        burst in bursts(),
        // Enough to spend on each of 8 CPUs what it may hold.
        packets in 300u32..=400,
    ) {
        let old = compile(&case);
        let machine = Machine::new(case.cpus);
        let mut now = case.start;
        let mut packet = 0;
        for &(pause, cpu, _, packets) in &case.steps {
            now = (now + pause).min(LATEST);
            for _ in 0..packets {
                packet += 1;
                machine.charge_apart(&old, cpu, now, packet);
            }
        }
        let new = Limit::compile(rate, burst, case.cpus, case.strict).unwrap();
        let leased = u64::from(case.cpus) * u64::from(new.lease());
        let mut above = Exact::new(rate, u64::from(burst) + leased, now);
        for n in 0..packets {
            packet += 1;
            if machine.charge_apart(&new, n, now, packet) {
                prop_assert!(above.holds(1), "more than the new limit");
                above.take(1);
            }
        }
        // However deep in debt under the old limit: the new burst is back
        // after the time that it takes, and the slack.
        let fill = u128::from(burst) * u128::from(rate.period_ns()) / u128::from(rate.tokens());
        let fill = fill + fill / 512 + u128::from(SLACK_NS) + 100_000;
        if let Some(later) = u64::try_from(fill).ok().and_then(|fill| now.checked_add(fill))
            && later < LATEST
        {
            let granted = (0..burst.min(1000))
                .filter(|n| machine.charge_apart(&new, 0, later, packet + 1 + n))
                .count();
            prop_assert_eq!(granted, burst.min(1000) as usize);
        }
    }

    /// Whatever stands in a damaged entry, nothing panics, and the source is
    /// served again once the burst has had time to fill.
    #[test]
    fn damaged_entries_heal(
        rate in rates(),
        burst in 1u32..=1000,
        tat in any::<u64>(),
        now in 0u64..=365 * DAY,
        lease in any::<[u8; 8]>(),
    ) {
        let limit = Limit::compile(rate, burst, 2, false).unwrap();
        let machine = Machine::new(2);
        machine.word.set(tat);
        // SAFETY: `Lease` is two integers; any bytes are a value.
        machine.cpus[0].0.set(unsafe { std::mem::transmute::<[u8; 8], Lease>(lease) });
        let mut admitted = 0u64;
        for packet in 0..3000 {
            admitted += u64::from(machine.charge_apart(&limit, 0, now, packet));
        }
        prop_assert!(admitted <= u64::from(burst) + u64::from(limit.lease()));
        let fill = u64::from(burst) * rate.period_ns().div_ceil(rate.tokens()) + SLACK_NS;
        let later = now + fill + fill / 512 + 100_000;
        prop_assert!(machine.charge_apart(&limit, 1, later, 5000));
    }
}

/// A CPU whose clock is ahead spends leased tokens, then one whose clock lies
/// behind by less than the slack takes more.
#[test]
fn leased_tokens_spent_ahead_of_another_clock_give_nothing_away() {
    let case = Case {
        rate: Rate::packets(10_000_000, SECOND).unwrap(),
        burst: 20,
        cpus: 8,
        strict: false,
        start: 113_660_502_971_179_092,
        steps: vec![(0, 3, 258_054, 7), (0, 3, 0, 1), (0, 0, 199_036, 7), (0, 0, 0, 21)],
    };
    run(&case, 0).unwrap();
}

/// 3,000/s must be 3,000/s, for every rate, over a long time: the fraction of
/// a token that a lease leaves is carried on.
#[test]
fn no_fraction_of_a_token_is_lost() {
    for (tokens, period, seconds) in [
        (1, DAY, 40 * 86_400),
        (7, 3600 * SECOND, 10 * 3600),
        (3, SECOND, 1000),
        (3_000, SECOND, 100),
        (999_983, SECOND, 2),
        (7_000_000, SECOND, 1),
        (10_000_000, SECOND, 1),
    ] {
        let rate = Rate::packets(tokens, period).unwrap();
        for cpus in [1, 2, 3] {
            for burst in [2, 100] {
                let limit = Limit::compile(rate, burst, cpus, false).unwrap();
                let machine = Machine::new(cpus);
                // Three packets for each token.
                let packets = 3 * seconds * SECOND / period.div_ceil(tokens).max(1);
                let step = seconds * SECOND / packets;
                let mut admitted = 0u64;
                for n in 0..packets {
                    let tick = u32::try_from(n).unwrap();
                    admitted +=
                        u64::from(machine.charge_apart(&limit, tick % cpus, 1 + n * step, tick));
                }
                let ideal = tokens as f64 * (packets * step) as f64 / period as f64;
                let least = ideal * 0.998 - 1.0;
                let most = ideal + f64::from(burst) + excess(&limit, cpus) as f64;
                assert!(
                    (least..=most).contains(&(admitted as f64)),
                    "{tokens} per {period} ns, burst {burst}, {cpus} CPUs: {admitted} of {ideal}"
                );
            }
        }
    }
}

/// A word that other CPUs keep changing is given up after a bounded number of
/// attempts, and nothing is admitted.
#[test]
fn contention_is_bounded_and_admits_nothing() {
    struct Busy<'a>(&'a Cell<u32>);
    impl Word for Busy<'_> {
        fn load(&self) -> u64 {
            0
        }
        fn replace(&self, _current: u64, _new: u64) -> bool {
            self.0.set(self.0.get() + 1);
            false
        }
    }
    let rate = Rate::packets(1000, SECOND).unwrap();
    let limit = Limit::compile(rate, 100, 2, false).unwrap();
    let (cpu, tries) = (Cpu::default(), Cell::new(0));
    let read = Cell::new(false);
    let at = At { ns: SECOND, tick: 1, read: &read };
    assert_eq!(charge(&limit, 1, &cpu, || Some(Busy(&tries)), &at), Charge::Contended);
    assert_eq!(tries.get(), 4);
    assert_eq!(charge(&limit, 1, &cpu, || None::<Busy<'_>>, &at), Charge::NoRoom);
}

/// Real threads on one atomic word.
#[test]
fn threads_never_admit_more_than_the_bound() {
    use std::sync::{
        Barrier,
        atomic::{AtomicU64, Ordering::SeqCst},
    };
    struct Atomic<'a>(&'a AtomicU64);
    impl Word for Atomic<'_> {
        fn load(&self) -> u64 {
            self.0.load(SeqCst)
        }
        fn replace(&self, current: u64, new: u64) -> bool {
            self.0.compare_exchange(current, new, SeqCst, SeqCst).is_ok()
        }
    }
    struct Wall(std::time::Instant, Cell<u64>);
    impl Clock for Wall {
        fn now_ns(&self) -> u64 {
            u64::try_from(self.0.elapsed().as_nanos()).unwrap()
        }
        fn coarse_ns(&self) -> u64 {
            unreachable!("not a bucket's clock")
        }

        fn boot_ns(&self) -> u64 {
            unreachable!("not a bucket's clock")
        }

        fn tick(&self) -> u64 {
            self.1.set(self.1.get() + 1);
            self.1.get()
        }
    }
    const THREADS: u32 = 4;
    let rate = Rate::packets(1_000_000, SECOND).unwrap();
    let limit = Limit::compile(rate, 1000, THREADS, false).unwrap();
    let (word, barrier) = (AtomicU64::new(0), Barrier::new(THREADS as usize));
    let start = std::time::Instant::now();
    let admitted: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    let (cpu, clock) = (Cpu::default(), Wall(start, Cell::new(0)));
                    (0..300_000)
                        .filter(|_| {
                            let home = || Some(Atomic(&word));
                            charge(&limit, 1, &cpu, home, &clock) == Charge::Admitted
                        })
                        .count() as u64
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let passed = u64::try_from(start.elapsed().as_nanos()).unwrap();
    let most = 1000 + passed / 1000 + excess(&limit, THREADS);
    assert!(admitted <= most, "{admitted} > {most}");
    assert!(admitted >= 1000, "{admitted}: not even the burst");
}

/// A denial is remembered for as long as the tokens surely are missing: most
/// packets of a source far beyond its limit cost no look at the shared word.
/// It never outlives the rule set that it was made by.
#[test]
fn a_denial_is_remembered_until_tokens_are_near_and_ends_with_its_rules() {
    const TICK: u64 = 4_000_000;
    let rate = Rate::packets(1, SECOND).unwrap();
    let limit = Limit::compile(rate, 10, 2, false).unwrap().stamped(7);
    let machine = Machine::new(2);
    let charge = |limit: &Limit, ns: u64| machine.charge(limit, 0, ns, ns / TICK);
    let start = 1000 * SECOND;
    for _ in 0..10 {
        assert!(charge(&limit, start));
    }
    let (mut looks, mut admitted_at) = (0, None);
    for n in 0..10_000u64 {
        let now = start + n * SECOND / 5000;
        let admitted = charge(&limit, now);
        looks += u32::from(machine.read.get());
        if admitted && admitted_at.is_none() {
            admitted_at = Some(now - start);
        }
    }
    assert!(looks < 60, "{looks} looks at the shared word in 10,000 packets");
    let late = admitted_at.unwrap() - SECOND;
    assert!(late <= 2 * TICK, "the token came {late} ns late");
    let later = start + 2 * SECOND + SECOND / 2;
    assert!(charge(&limit, later) && !charge(&limit, later));
    let wider = Rate::packets(1000, SECOND).unwrap();
    let wider = Limit::compile(wider, 10, 2, false).unwrap().stamped(8);
    // The debt under the old limit is cut to an empty bucket of the new one.
    assert!(!charge(&wider, later) && machine.read.get());
    assert!(charge(&wider, later + 2 * TICK));
}
