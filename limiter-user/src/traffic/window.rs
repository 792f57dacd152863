//! Who sends most, from the samples of the last seconds.
//!
//! A sample of weight w is one of w packets, each as likely to be it. So a sum
//! of weights is right on average, with a variance of w (w - 1) for each
//! sample in it (Horvitz and Thompson, 1952). Of few samples that variance is
//! itself a guess, and of what was not sampled there is none. So the bound is
//! four standard deviations, and eight of the gaps that a packet lies in on
//! average (an empirical Bernstein bound, Maurer and Pontil, 2009; a source
//! of eight gaps is missed by all samples with a probability below e^-8).

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    net::IpAddr,
};

use limiter_common::{
    sample::Sample,
    stats,
    verdict::{Reason, Verdict},
};

use super::packet::Facts;
use crate::api::Rates;

/// Seconds that are looked back.
pub(super) const SECONDS: u8 = 10;
const WINDOW_NS: u64 = SECONDS as u64 * 1_000_000_000;
/// More samples than the default pace gives for 13 reasons at once.
const MAX_SAMPLES: usize = 262_144;
const DEVIATIONS: f64 = 4.0;
const GAPS: f64 = 8.0;

/// A sample, as far as it is needed here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    time_ns: u64,
    pub(super) source: Option<IpAddr>,
    pub(super) protocol: Option<u8>,
    pub(super) port: Option<u16>,
    pub(super) row: u32,
    pub(super) verdict: Verdict,
    pub(super) reason: Reason,
    weight: u32,
    length: u32,
}

#[derive(Debug, Default)]
pub(super) struct Window {
    seen: VecDeque<Seen>,
    /// Since when it is looked, nanoseconds of the monotonic clock.
    since: Option<u64>,
}

impl Window {
    /// Takes up a sample, unless it is older than the window, which begins with
    /// [`Self::forget`]: what lay there while no daemon ran has no known duration.
    pub(super) fn note(&mut self, sample: &Sample, now_ns: u64) {
        let Some((row, verdict, reason)) = stats::of_row(sample.row) else {
            return;
        };
        if sample.time_ns < self.begins(now_ns) {
            return;
        }
        if self.seen.len() == MAX_SAMPLES {
            self.seen.pop_front();
        }
        let facts = Facts::of(sample);
        self.seen.push_back(Seen {
            time_ns: sample.time_ns,
            source: facts.source,
            protocol: facts.protocol,
            port: facts.destination_port,
            row,
            verdict,
            reason,
            weight: sample.weight,
            length: sample.length,
        });
    }

    /// Forgets what is too old; begins to look, if that was not yet done.
    pub(super) fn forget(&mut self, now_ns: u64) {
        self.since.get_or_insert(now_ns);
        let begins = self.begins(now_ns);
        // Those of several CPUs are nearly in order.
        while self.seen.front().is_some_and(|seen| seen.time_ns < begins) {
            self.seen.pop_front();
        }
    }

    /// What is not too old.
    pub(super) fn latest(&self, now_ns: u64) -> impl Iterator<Item = &Seen> {
        let begins = self.begins(now_ns);
        self.seen.iter().filter(move |seen| seen.time_ns >= begins)
    }

    /// Seconds that the samples stand for: less than the window if it is full,
    /// or if it is not looked for as long yet.
    pub(super) fn seconds(&self, now_ns: u64) -> f64 {
        let full = self.seen.len() == MAX_SAMPLES;
        let oldest = self.seen.front().filter(|_| full).map_or(0, |seen| seen.time_ns);
        #[expect(clippy::cast_precision_loss, reason = "a few seconds")]
        let seconds = now_ns.saturating_sub(oldest.max(self.begins(now_ns))) as f64 / 1e9;
        seconds.max(0.001)
    }

    fn begins(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(WINDOW_NS).max(self.since.unwrap_or(now_ns))
    }
}

/// Sums over the samples of one key.
#[derive(Clone, Debug, Default)]
pub(super) struct Sum {
    passed: f64,
    dropped: f64,
    would_drop: f64,
    bytes: f64,
    variance: f64,
    reasons: Vec<(Reason, f64)>,
}

impl Sum {
    fn add(&mut self, seen: &Seen) {
        let weight = f64::from(seen.weight);
        match seen.verdict {
            Verdict::Pass => self.passed += weight,
            Verdict::Drop => self.dropped += weight,
            Verdict::WouldDrop => self.would_drop += weight,
        }
        if seen.verdict != Verdict::Pass {
            match self.reasons.iter_mut().find(|(reason, _)| *reason == seen.reason) {
                Some((_, sum)) => *sum += weight,
                None => self.reasons.push((seen.reason, weight)),
            }
        }
        self.bytes += weight * f64::from(seen.length);
        self.variance += weight * (weight - 1.0);
    }

    /// `gap`: packets between two samples of where this key was looked for.
    pub(super) fn rates(&self, seconds: f64, gap: f64) -> Rates {
        let bound = DEVIATIONS * self.variance.sqrt() + GAPS * gap;
        Rates {
            passed_pps: self.passed / seconds,
            dropped_pps: self.dropped / seconds,
            would_drop_pps: self.would_drop / seconds,
            bytes_per_second: self.bytes / seconds,
            error_bound: bound / seconds,
        }
    }

    /// Why most of it is dropped, or would be.
    pub(super) fn reason(&self) -> Option<Reason> {
        let most = self.reasons.iter().max_by(|(_, a), (_, b)| a.total_cmp(b));
        most.map(|(reason, _)| *reason)
    }
}

/// How many packets lie between two samples, by policy: as a packet finds it on
/// average, of the verdict and reason where that is most. 0 if all are samples.
pub(super) fn gaps<'a>(seen: impl Iterator<Item = &'a Seen>) -> HashMap<u32, f64> {
    let mut sums = HashMap::<_, (f64, f64)>::new();
    for seen in seen {
        let weight = f64::from(seen.weight);
        let (all, between) = sums.entry((seen.row, seen.verdict, seen.reason)).or_default();
        *all += weight;
        *between += weight * (weight - 1.0);
    }
    let mut gaps = HashMap::<u32, f64>::new();
    for ((policy, ..), (all, between)) in sums {
        let gap = gaps.entry(policy).or_default();
        *gap = gap.max(between / all.max(1.0));
    }
    gaps
}

/// Sums by key, of those that have one.
pub(super) fn sums<'a, K: Eq + Hash>(
    seen: impl Iterator<Item = &'a Seen>,
    key: impl Fn(&Seen) -> Option<K>,
) -> HashMap<K, Sum> {
    let mut sums: HashMap<K, Sum> = HashMap::new();
    for seen in seen {
        if let Some(key) = key(seen) {
            sums.entry(key).or_default().add(seen);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// One of ten packets of 100 bytes that passed.
    fn sample(time_ns: u64) -> Sample {
        let row = stats::row(0, Verdict::Pass, Reason::WithinLimit);
        let words = [10, 100, 0, row, 0, 0].map(u32::to_ne_bytes).concat();
        Sample::from_bytes(&[&time_ns.to_ne_bytes(), words.as_slice(), &[0; 256]].concat()).unwrap()
    }

    fn rates(window: &Window, now_ns: u64) -> Rates {
        let sums = sums(window.latest(now_ns), |it| Some(it.row));
        let gap = gaps(window.latest(now_ns))[&0];
        sums[&0].rates(window.seconds(now_ns), gap)
    }

    #[test]
    fn a_window_that_is_not_full_yet_is_as_long_as_it_was_looked() {
        let mut window = Window::default();
        window.forget(100 * SECOND);
        window.note(&sample(99 * SECOND), 100 * SECOND);
        assert_eq!(window.latest(100 * SECOND).count(), 0, "nobody looked at that time");
        window.note(&sample(101 * SECOND), 102 * SECOND);
        assert!((window.seconds(102 * SECOND) - 2.0).abs() < 1e-9);
        assert!((rates(&window, 102 * SECOND).passed_pps - 5.0).abs() < 1e-9);
        assert!((window.seconds(120 * SECOND) - 10.0).abs() < 1e-9);
        assert_eq!(window.latest(112 * SECOND).count(), 0);
        window.forget(112 * SECOND);
        assert!(window.seen.is_empty());
    }

    #[test]
    fn sums_are_of_the_packets_that_samples_stand_for() {
        let mut window = Window::default();
        window.forget(0);
        for at in 0..40 {
            window.note(&sample(at * SECOND / 4), 10 * SECOND);
        }
        let rates = rates(&window, 10 * SECOND);
        assert!((rates.passed_pps - 40.0).abs() < 1e-9);
        assert!((rates.bytes_per_second - 4000.0).abs() < 1e-9);
        // 4 * sqrt(40 * 10 * 9) + 8 * 9, in 10 s.
        assert!((rates.error_bound - 31.2).abs() < 1e-9, "{}", rates.error_bound);
    }

    #[test]
    fn a_window_with_too_many_samples_is_shorter() {
        let mut window = Window::default();
        window.forget(0);
        for at in 0..=MAX_SAMPLES as u64 {
            window.note(&sample(at * 20_000), at * 20_000);
        }
        assert_eq!(window.seen.len(), MAX_SAMPLES);
        let now = MAX_SAMPLES as u64 * 20_000;
        assert!((rates(&window, now).passed_pps - 500_000.0).abs() < 10.0);
    }
}
