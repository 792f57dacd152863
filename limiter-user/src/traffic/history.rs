//! What was counted in each of the last seconds.

use std::collections::{BTreeMap, HashMap, VecDeque};

use limiter_common::{
    stats::{self, Counter},
    verdict::Verdict,
};

use crate::{
    api::{History, Rates, SCHEMA_VERSION},
    plane::Count,
};

/// Seconds that are kept.
const KEPT: usize = 300;
/// A reading after so many seconds is no value of one second: the daemon, or
/// the machine, was stopped in between.
const LONGEST_STEP: f64 = 3.0;

#[derive(Debug, Default)]
pub(super) struct Seconds {
    /// The latest counters, by interface and row.
    before: Option<HashMap<(usize, u32), Counter>>,
    /// When they were read, seconds of a clock that only goes forward, and
    /// since 1970.
    read: (f64, u64),
    seconds: VecDeque<Second>,
}

/// What came between two readings, by row.
#[derive(Clone, Debug, Default)]
pub(super) struct Came {
    /// Seconds in between, more than 0.
    pub(super) seconds: f64,
    pub(super) rows: BTreeMap<u32, Counter>,
}

/// What came in a second, by row, per second.
#[derive(Debug, Default)]
struct Second(BTreeMap<u32, (f64, f64)>);

impl Seconds {
    /// Takes up a reading of all counters, at `now` seconds of a clock that only
    /// goes forward, `time` seconds after 1970; says what came since the last.
    pub(super) fn read(&mut self, counts: &[Vec<Count>], now: f64, time: u64) -> Option<Came> {
        let mut present = HashMap::new();
        let mut came = Came { seconds: now - self.read.0, ..Came::default() };
        for (interface, count) in
            counts.iter().enumerate().flat_map(|(at, counts)| counts.iter().map(move |it| (at, it)))
        {
            let row = stats::row(count.policy, count.verdict, count.reason);
            present.insert((interface, row), count.counter);
            let Some(before) = &self.before else {
                continue;
            };
            let before = before.get(&(interface, row)).copied().unwrap_or_default();
            // Counters that are cleared begin anew.
            let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
            let packets = since(count.counter.packets, before.packets);
            let bytes = since(count.counter.bytes, before.bytes);
            if packets > 0 {
                let sum = came.rows.entry(row).or_default();
                sum.packets += packets;
                sum.bytes += bytes;
            }
        }
        let is_first = self.before.replace(present).is_none();
        self.read = (now, time);
        if is_first || came.seconds <= 0.0 {
            return None;
        }
        if came.seconds > LONGEST_STEP {
            self.seconds.clear();
            return Some(came);
        }
        if self.seconds.len() == KEPT {
            self.seconds.pop_front();
        }
        let mean = |count: &Counter| {
            (float(count.packets) / came.seconds, float(count.bytes) / came.seconds)
        };
        let rows = came.rows.iter().map(|(row, count)| (*row, mean(count)));
        self.seconds.push_back(Second(rows.collect()));
        Some(came)
    }

    pub(super) fn history(&self) -> History {
        let mut history = History {
            schema_version: SCHEMA_VERSION,
            step_seconds: 1,
            last: self.read.1,
            passed: vec![0.0; self.seconds.len()],
            bytes: vec![0.0; self.seconds.len()],
            ..History::default()
        };
        for (at, Second(rows)) in self.seconds.iter().enumerate() {
            for (row, (packets, bytes)) in rows {
                let Some((_, verdict, reason)) = stats::of_row(*row) else {
                    continue;
                };
                let series = match verdict {
                    Verdict::Pass => &mut history.passed,
                    Verdict::Drop => {
                        series(&mut history.dropped, reason.name(), self.seconds.len())
                    }
                    Verdict::WouldDrop => {
                        series(&mut history.would_drop, reason.name(), self.seconds.len())
                    }
                };
                series[at] += packets;
                history.bytes[at] += bytes;
            }
        }
        // Digits that nobody sees, of values that everybody reads each second.
        let of_reasons = history.dropped.values_mut().chain(history.would_drop.values_mut());
        for series in of_reasons.chain([&mut history.passed, &mut history.bytes]) {
            for value in series {
                *value = (*value * 10.0).round() / 10.0;
            }
        }
        history
    }

    /// Means over the last seconds by policy, of as many as there are up to
    /// `seconds`.
    pub(super) fn policies(&self, seconds: u8) -> BTreeMap<u32, Rates> {
        let taken = self.seconds.len().min(seconds.into());
        let mut policies = BTreeMap::<u32, Rates>::new();
        for Second(rows) in self.seconds.iter().rev().take(taken) {
            for (row, (packets, bytes)) in rows {
                let Some((policy, verdict, _)) = stats::of_row(*row) else {
                    continue;
                };
                let rates = policies.entry(policy).or_default();
                let mean = packets / float(taken as u64);
                match verdict {
                    Verdict::Pass => rates.passed_pps += mean,
                    Verdict::Drop => rates.dropped_pps += mean,
                    Verdict::WouldDrop => rates.would_drop_pps += mean,
                }
                rates.bytes_per_second += bytes / float(taken as u64);
            }
        }
        policies
    }
}

fn series<'a>(
    by_reason: &'a mut BTreeMap<String, Vec<f64>>,
    reason: &str,
    length: usize,
) -> &'a mut Vec<f64> {
    by_reason.entry(reason.into()).or_insert_with(|| vec![0.0; length])
}

#[expect(clippy::cast_precision_loss, reason = "counters of a few seconds")]
const fn float(number: u64) -> f64 {
    number as f64
}
