//! When an attack begins and ends.
//!
//! One second above the mark is none, and a pause is no end: it begins after
//! some seconds in a row above it, and ends after some more below half of it.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use limiter_common::{
    stats::{self, Counter, NO_POLICY},
    verdict::Verdict,
};

use super::{history::Came, recent::written};
use crate::{
    api::{self, Attack, ReasonCount, TopSource, What},
    config,
};

/// Time between two looks at who sends most.
const LOOK_EVERY: f64 = 10.0;

/// What is or may become an attack.
#[derive(Debug)]
struct Flood {
    began: SystemTime,
    /// Whether it was long enough for an attack.
    is_attack: bool,
    /// Seconds since it began, and those at the end that were quiet.
    seconds: f64,
    quiet: f64,
    /// Packets per second in the last second, and the most of them.
    rate: f64,
    peak: f64,
    /// By verdict and reason: their row without a policy.
    reasons: BTreeMap<u32, Counter>,
    sources: Vec<TopSource>,
    /// Seconds since these were looked at.
    looked: f64,
}

#[derive(Debug, Default)]
pub(super) struct Watch {
    flood: Option<Flood>,
    attacks: u64,
}

impl Watch {
    /// Takes up what came; says if an attack begins or ends with it. Asks for
    /// who sends most where that is to be told.
    pub(super) fn take(
        &mut self,
        came: &Came,
        config: &config::Attack,
        now: SystemTime,
        sources: impl FnOnce() -> Vec<TopSource>,
    ) -> Option<What> {
        let begins = config.rate.per_second();
        let dropped: Vec<_> = came
            .rows
            .iter()
            .filter_map(|(row, count)| {
                let (_, verdict, reason) = stats::of_row(*row)?;
                (verdict != Verdict::Pass).then_some((reason, verdict, *count))
            })
            .collect();
        let packets: u64 = dropped.iter().map(|(.., count)| count.packets).sum();
        #[expect(clippy::cast_precision_loss, reason = "packets of a second")]
        let rate = packets as f64 / came.seconds;
        let is_high = rate >= begins;
        if !is_high && self.flood.as_ref().is_none_or(|flood| !flood.is_attack) {
            self.flood = None;
            return None;
        }
        let step = Duration::from_secs_f64(came.seconds);
        let flood = self.flood.get_or_insert_with(|| Flood {
            began: now.checked_sub(step).unwrap_or(now),
            is_attack: false,
            seconds: 0.0,
            quiet: 0.0,
            rate: 0.0,
            peak: 0.0,
            reasons: BTreeMap::new(),
            sources: Vec::new(),
            looked: LOOK_EVERY,
        });
        flood.seconds += came.seconds;
        flood.looked += came.seconds;
        flood.rate = rate;
        flood.peak = flood.peak.max(rate);
        for (reason, verdict, count) in dropped {
            let row = stats::row(NO_POLICY, verdict, reason);
            let sum = flood.reasons.entry(row).or_default();
            sum.packets += count.packets;
            sum.bytes += count.bytes;
        }
        flood.quiet = if rate < begins / 2.0 { flood.quiet + came.seconds } else { 0.0 };
        let begins_now = !flood.is_attack && flood.seconds >= f64::from(config.begins_after);
        flood.is_attack |= begins_now;
        if flood.is_attack && is_high && (begins_now || flood.looked >= LOOK_EVERY) {
            flood.sources = sources();
            flood.looked = 0.0;
        }
        if begins_now {
            self.attacks += 1;
            return Some(What::AttackBegins(flood.shown(true)));
        }
        if flood.is_attack && flood.quiet >= f64::from(config.ends_after) {
            let shown = flood.shown(false);
            self.flood = None;
            return Some(What::AttackEnds(shown));
        }
        None
    }

    /// The attack that goes on.
    pub(super) fn present(&self) -> Option<Attack> {
        self.flood.as_ref().filter(|flood| flood.is_attack).map(|flood| flood.shown(true))
    }

    /// Attacks that began since the daemon started.
    pub(super) const fn attacks(&self) -> u64 {
        self.attacks
    }
}

impl Flood {
    fn shown(&self, ongoing: bool) -> Attack {
        let mut reasons: Vec<_> = self
            .reasons
            .iter()
            .filter_map(|(row, count)| {
                let (_, verdict, reason) = stats::of_row(*row)?;
                Some(ReasonCount {
                    reason: reason.name().into(),
                    verdict: verdict.name().into(),
                    packets: count.packets,
                    bytes: count.bytes,
                })
            })
            .collect();
        reasons.sort_by_key(|reason| std::cmp::Reverse(reason.packets));
        let lasted = if ongoing { self.seconds } else { self.seconds - self.quiet };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds")]
        let duration_seconds = lasted.round() as u64;
        api::Attack {
            began: written(self.began),
            ongoing,
            duration_seconds,
            dropped_pps: self.rate,
            peak_pps: self.peak,
            packets: reasons.iter().map(|reason| reason.packets).sum(),
            bytes: reasons.iter().map(|reason| reason.bytes).sum(),
            observed: reasons.iter().all(|it| it.verdict == Verdict::WouldDrop.name()),
            reasons,
            sources: self.sources.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use limiter_common::verdict::Reason;

    use super::*;

    fn config() -> config::Attack {
        config::Attack { rate: "1k/s".parse().unwrap(), ..config::Attack::default() }
    }

    /// A second with so many packets over their limit.
    fn second(verdict: Verdict, packets: u64) -> Came {
        let row = stats::row(0, verdict, Reason::SourceRate);
        let passed = stats::row(0, Verdict::Pass, Reason::WithinLimit);
        let rows = [(row, packets), (passed, 1_000_000)];
        let counts = rows.map(|(row, packets)| (row, Counter { packets, bytes: packets * 60 }));
        Came { seconds: 1.0, rows: counts.into() }
    }

    /// What the seconds say that are not silent, with their numbers.
    fn told(packets: impl IntoIterator<Item = u64>) -> Vec<(usize, What)> {
        let mut watch = Watch::default();
        let seconds = packets.into_iter().enumerate().filter_map(|(at, packets)| {
            let came = second(Verdict::Drop, packets);
            let what = watch.take(&came, &config(), SystemTime::UNIX_EPOCH, Vec::new)?;
            Some((at, what))
        });
        seconds.collect()
    }

    #[test]
    fn it_takes_some_seconds_in_a_row() {
        assert_eq!(told([5000, 5000, 0, 5000, 5000, 999, 1000, 1000, 0]), []);
        let told = told([0, 1000, 1000, 1000]);
        assert!(matches!(told.as_slice(), [(3, What::AttackBegins(_))]), "{told:?}");
    }

    #[test]
    fn it_goes_on_over_a_pause_and_near_the_mark() {
        let pause = std::iter::repeat_n(0, 29);
        let near = std::iter::repeat_n(501, 100);
        let flood = [2000, 2000, 8000].into_iter();
        let told = told(flood.chain(pause).chain(near).chain([0; 40]));
        let [(2, What::AttackBegins(began)), (161, What::AttackEnds(ended))] = told.as_slice()
        else {
            panic!("{told:?}");
        };
        assert!(began.ongoing && !ended.ongoing);
        assert_eq!(began.packets, 12_000);
        assert_eq!((ended.packets, ended.duration_seconds), (12_000 + 100 * 501, 3 + 29 + 100));
        assert!((ended.peak_pps - 8000.0).abs() < 1e-6);
        assert_eq!(ended.bytes, ended.packets * 60);
        assert_eq!(ended.reasons[0].reason, "source_rate");
    }

    #[test]
    fn what_is_only_observed_says_so() {
        let mut watch = Watch::default();
        for _ in 0..5 {
            let came = second(Verdict::WouldDrop, 3000);
            watch.take(&came, &config(), SystemTime::UNIX_EPOCH, Vec::new);
        }
        let attack = watch.present().unwrap();
        assert!(attack.observed && attack.ongoing);
        assert_eq!(watch.attacks(), 1);
        let came = second(Verdict::Drop, 3000);
        watch.take(&came, &config(), SystemTime::UNIX_EPOCH, Vec::new);
        assert!(!watch.present().unwrap().observed);
    }
}
