//! Limits that would fit what was seen, and what they would have done.
//!
//! What a source sent in a tenth of a second is taken to have come at once, so
//! a burst is never thought smaller than it was.

use std::cell::Cell;

use limiter_common::{
    bucket::{self, Bucket, Lease, Word},
    limit::{Limit, MAX_COST, MAX_RATE_PER_SECOND},
};

use super::{
    names::Names,
    series::{OfPolicy, SLOTS_PER_SECOND, Series, Slot},
};
use crate::{
    api::{self, NearSource, SCHEMA_VERSION, SuggestQuery, Suggestion, Suggestions},
    error::{Error, Kind, Result},
    prefix::Prefix,
    rate::PacketRate,
};

const DEFAULT_QUANTILE: f64 = 99.9;
const DEFAULT_HEADROOM: f64 = 2.0;
/// Seconds over which a rate is the mean: shorter peaks are for the burst.
const RATE_SECONDS: u32 = 10;
/// No burst below it is proposed: a page makes as many connections.
const LEAST_BURST: u32 = 10;
const NEAREST: usize = 10;
/// Below so many seconds, or sources, there is a word of caution.
const FEW_SECONDS: f64 = 60.0;
const FEW_SOURCES: usize = 100;
const DEVIATIONS: f64 = 4.0;
const SLOT_NS: u64 = 1_000_000_000 / SLOTS_PER_SECOND as u64;

pub(super) fn suggest(
    series: &Series,
    names: &Names,
    query: &SuggestQuery,
    limits: &api::Limits,
    now_ns: u64,
) -> Result<Suggestions> {
    let quantile = query.quantile.unwrap_or(DEFAULT_QUANTILE);
    if !(quantile > 0.0 && quantile < 100.0) {
        let message = format!("the quantile must lie between 0 and 100, not {quantile}");
        return Err(Error::new(Kind::Invalid, message).hint("such as 99.9"));
    }
    let headroom = query.headroom.unwrap_or(DEFAULT_HEADROOM);
    if !(headroom >= 1.0 && headroom.is_finite()) {
        let message = format!("the headroom is a factor from 1 on, not {headroom}");
        return Err(Error::new(Kind::Invalid, message).hint("such as 2"));
    }
    let wanted = query.policy.as_deref().map(|name| names.row(name)).transpose()?;
    let mut suggestions =
        Suggestions { schema_version: SCHEMA_VERSION, quantile, headroom, ..Default::default() };
    for limit in &limits.policies {
        // A policy that is there since less than a second.
        let Ok(row) = names.row(&limit.name) else {
            continue;
        };
        if wanted.is_some_and(|wanted| wanted != row) {
            continue;
        }
        let seen = series.of_policy(row, now_ns);
        let (name, seconds) = (&limit.name, seen.seconds);
        if seen.sources.is_empty() {
            let note = format!("{name}: no source was seen in {seconds:.0} s");
            suggestions.notes.push(note);
            continue;
        }
        if seconds < FEW_SECONDS {
            let note = format!("{name}: {seconds:.0} s are short; ask again after a busy time");
            suggestions.notes.push(note);
        }
        if seen.sources.len() < FEW_SOURCES {
            let count = seen.sources.len();
            let note = format!("{name}: {count} sources are few to tell usual ones from others");
            suggestions.notes.push(note);
        }
        suggestions.policies.push(suggestion(&seen, limit, quantile, headroom)?);
    }
    Ok(suggestions)
}

fn suggestion(
    seen: &OfPolicy<'_>,
    present: &api::Limit,
    quantile: f64,
    headroom: f64,
) -> Result<Suggestion> {
    let slots = || seen.sources.iter().map(|(_, slots)| *slots);
    let need = at_quantile(slots().map(|slots| peak(slots, seen.seconds)), quantile);
    let rate = rounded_up(need * headroom);
    let need = at_quantile(slots().map(|slots| debt(slots, rate.per_second())), quantile);
    let burst = whole(need * headroom).max(LEAST_BURST);
    let limit = Limit::compile(rate.0, burst, 1, true)
        .map_err(|_| Error::failed("the limit that would fit is out of range"))?;

    let outcomes: Vec<_> =
        seen.sources.iter().map(|(source, slots)| replay(&limit, *source, slots)).collect();
    let sent: u64 = outcomes.iter().map(|it| it.sent).sum();
    let share_cut = share(outcomes.iter().map(|it| it.cut).sum(), sent);
    let one_in = seen.one_in;
    let mut near: Vec<_> = seen
        .sources
        .iter()
        .zip(&outcomes)
        .map(|((_, slots), it)| NearSource {
            source: it.source.to_string(),
            rate_per_second: mean(slots, it.sent),
            use_of_burst: debt(slots, rate.per_second()) / f64::from(burst),
            share_cut: share(it.cut, it.sent),
        })
        .collect();
    near.sort_by(|a, b| b.use_of_burst.total_cmp(&a.use_of_burst).then(a.source.cmp(&b.source)));
    near.truncate(NEAREST);
    Ok(Suggestion {
        policy: present.name.clone(),
        rate_per_second: rate.per_second(),
        burst,
        present_rate_per_second: present.source.rate_per_second,
        present_burst: present.source.burst,
        command: format!("limiterctl limit set {} --rate {rate} --burst {burst}", present.name),
        observed_seconds: seen.seconds,
        sources_seen: seen.sources.len() as u64 * one_in,
        one_source_in: one_in,
        sources_cut: outcomes.iter().filter(|it| it.cut > 0).count() as u64 * one_in,
        packets_seen: sent,
        share_cut,
        share_error: share_error(&outcomes, share_cut, sent, one_in),
        nearest: near,
    })
}

/// What a limit would have done to a source.
struct Outcome {
    source: Prefix,
    sent: u64,
    cut: u64,
    /// Of what it sent, by the choice of samples.
    variance: f64,
    /// The most that one of its samples stands for.
    heaviest: u32,
}

/// A word that nobody else changes.
struct Own(Cell<u64>);

impl Word for Own {
    fn load(&self) -> u64 {
        self.0.get()
    }

    fn replace(&self, _: u64, new: u64) -> bool {
        self.0.set(new);
        true
    }
}

/// Runs the limit as the shield does.
fn replay(limit: &Limit, source: Prefix, slots: &[Slot]) -> Outcome {
    let word = Own(Cell::new(0));
    let mut outcome = Outcome { source, sent: 0, cut: 0, variance: 0.0, heaviest: 0 };
    for slot in slots {
        let now_ns = u64::from(slot.at) * SLOT_NS;
        let bucket = Bucket { tat: word.load(), lease: Lease::of(0) };
        let mut wanted = slot.packets.min(bucket::tokens(limit, &[bucket], now_ns));
        let mut granted = 0;
        while wanted > 0 {
            match bucket::take(limit, wanted.min(MAX_COST), &word, || limit.time(now_ns)) {
                Ok(tokens) => {
                    granted += tokens;
                    wanted = wanted.saturating_sub(tokens);
                }
                Err(_) => break,
            }
        }
        outcome.sent += u64::from(slot.packets);
        outcome.cut += u64::from(slot.packets.saturating_sub(granted));
        outcome.variance += f64::from(slot.packets) * f64::from(slot.heaviest.saturating_sub(1));
        outcome.heaviest = outcome.heaviest.max(slot.heaviest);
    }
    outcome
}

/// Four standard deviations of the share that is cut: by the choice of samples
/// and, where not all sources were looked at, by the choice of these (Cochran,
/// Sampling Techniques, chapter 6: the variance of a ratio).
fn share_error(outcomes: &[Outcome], share_cut: f64, sent: u64, one_in: u64) -> f64 {
    if sent == 0 {
        return 0.0;
    }
    let mut variance = 0.0;
    for it in outcomes {
        let part = if it.cut > 0 { 1.0 } else { share_cut };
        variance += it.variance * part * part;
        let off = float(it.cut) - share_cut * float(it.sent);
        variance += off * off * (1.0 - 1.0 / float(one_in));
    }
    // One packet more or less of the kind that a sample stands for.
    let heaviest = outcomes.iter().map(|it| it.heaviest.saturating_sub(1)).max().unwrap_or(0);
    let error = (DEVIATIONS * variance.sqrt() + f64::from(heaviest)) / float(sent);
    error.min(1.0)
}

/// The highest mean over [`RATE_SECONDS`], or all of a shorter time, packets per
/// second.
fn peak(slots: &[Slot], seconds: f64) -> f64 {
    let width = RATE_SECONDS * SLOTS_PER_SECOND;
    let (mut sum, mut highest, mut from) = (0_u64, 0_u64, 0);
    for slot in slots {
        sum += u64::from(slot.packets);
        while slots[from].at + width <= slot.at {
            sum -= u64::from(slots[from].packets);
            from += 1;
        }
        highest = highest.max(sum);
    }
    float(highest) / seconds.clamp(1.0, f64::from(RATE_SECONDS))
}

/// The most packets that a bucket with that rate would have to lend.
fn debt(slots: &[Slot], per_second: f64) -> f64 {
    let per_slot = per_second / f64::from(SLOTS_PER_SECOND);
    let (mut level, mut highest, mut before) = (0.0_f64, 0.0_f64, 0);
    for slot in slots {
        level = (level - per_slot * f64::from(slot.at - before)).max(0.0);
        level += f64::from(slot.packets);
        highest = highest.max(level);
        before = slot.at;
    }
    highest
}

/// Packets per second while it sent.
fn mean(slots: &[Slot], sent: u64) -> f64 {
    let span = match (slots.first(), slots.last()) {
        (Some(first), Some(last)) => last.at - first.at + 1,
        _ => 1,
    };
    float(sent) / (f64::from(span) / f64::from(SLOTS_PER_SECOND)).max(1.0)
}

/// The least of some values that so many of a hundred do not exceed.
fn at_quantile(values: impl Iterator<Item = f64>, quantile: f64) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    // Not one more for what the last digit of a float is off.
    let rank = (quantile * float(values.len() as u64) / 100.0 - 1e-6).ceil();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "up to a length")]
    let at = (rank as usize).saturating_sub(1);
    values.get(at).copied().unwrap_or_default()
}

/// A rate of two digits, within what a limit may be, and not below one per
/// second.
fn rounded_up(per_second: f64) -> PacketRate {
    let per_second = per_second.clamp(1.0, float(MAX_RATE_PER_SECOND));
    let digit = 10_f64.powf(per_second.log10().floor() - 1.0).max(1.0);
    let rounded = ((per_second / digit - 1e-9).ceil() * digit).min(float(MAX_RATE_PER_SECOND));
    let rate = format!("{rounded:.0}/s").parse();
    rate.unwrap_or_else(|_| unreachable!("{rounded} packets per second are a rate"))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float beyond the range becomes its end"
)]
fn whole(number: f64) -> u32 {
    number.ceil() as u32
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { float(part) / float(whole) }
}

#[expect(clippy::cast_precision_loss, reason = "packets of an hour")]
const fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn slot(at: u32, packets: u32) -> Slot {
        Slot { at, packets, heaviest: 1 }
    }

    fn source(number: u32) -> Prefix {
        Prefix::new(Ipv4Addr::from(0x0a00_0000 + number).into(), 32)
    }

    fn present() -> api::Limit {
        let none = api::LevelLimit {
            rate: None,
            rate_per_second: Some(7.0),
            burst: Some(9),
            bandwidth: None,
            bandwidth_bytes_per_second: None,
            bandwidth_burst_bytes: None,
        };
        api::Limit {
            name: "web".into(),
            mode: "observe".into(),
            algorithm: "token-bucket".into(),
            source: none,
            strict: false,
            per_prefix: None,
            total: None,
        }
    }

    #[test]
    fn rates_are_rounded_up_to_two_digits() {
        for (need, rate) in [
            (0.0, "1/s"),
            (1.2, "2/s"),
            (20.0, "20/s"),
            (99.1, "100/s"),
            (101.0, "110/s"),
            (1234.0, "1300/s"),
            (56_001.0, "57k/s"),
            (1e9, "10M/s"),
        ] {
            assert_eq!(rounded_up(need).to_string(), rate, "{need}");
        }
    }

    #[test]
    fn quantiles() {
        let values = || (1..=1000).map(f64::from);
        for (quantile, value) in [(99.9, 999.0), (50.0, 500.0), (0.01, 1.0), (99.99, 1000.0)] {
            assert!((at_quantile(values(), quantile) - value).abs() < 1e-9, "{quantile}");
        }
    }

    /// 999 sources of two packets per second, and one of 1000.
    fn mix() -> Vec<(Prefix, Vec<Slot>)> {
        let seconds = 0..60;
        let polite: Vec<_> =
            seconds.flat_map(|at| [slot(at * 10, 1), slot(at * 10 + 5, 1)]).collect();
        let flood: Vec<_> = (0..600).map(|at| slot(at, 100)).collect();
        let mut mix: Vec<_> = (0..999).map(|number| (source(number), polite.clone())).collect();
        mix.push((source(999), flood));
        mix
    }

    #[test]
    fn the_rest_is_cut_as_it_says() {
        let mix = mix();
        let sources = mix.iter().map(|(source, slots)| (*source, slots.as_slice())).collect();
        let seen = OfPolicy { seconds: 60.0, one_in: 1, sources };
        let it = suggestion(&seen, &present(), 99.9, 2.0).unwrap();
        assert!((it.rate_per_second - 4.0).abs() < 1e-9, "{it:?}");
        assert_eq!((it.burst, it.sources_seen, it.sources_cut), (10, 1000, 1));
        assert_eq!(it.command, "limiterctl limit set web --rate 4/s --burst 10");
        assert_eq!(it.packets_seen, 999 * 120 + 60_000);
        // All but a burst and four per second of the flood.
        let cut = 60_000.0 - 10.0 - 4.0 * 60.0;
        assert!((it.share_cut * 179_880.0 - cut).abs() < 5.0, "{}", it.share_cut * 179_880.0);
        assert!(it.share_error < 1e-9);
        assert_eq!(it.nearest.len(), 10);
        assert_eq!(it.nearest[0].source, source(999).to_string());
        assert!(it.nearest[0].use_of_burst > 1.0 && it.nearest[0].share_cut > 0.9);
        assert!(it.nearest[1].use_of_burst < 0.5 && it.nearest[1].share_cut < 1e-9);
        assert_eq!((it.present_rate_per_second, it.present_burst), (Some(7.0), Some(9)));
    }

    #[test]
    fn a_part_of_the_sources_gives_an_estimate_with_its_error() {
        let mix = mix();
        let half = mix.iter().skip(500).map(|(source, slots)| (*source, slots.as_slice()));
        let seen = OfPolicy { seconds: 60.0, one_in: 2, sources: half.collect() };
        let it = suggestion(&seen, &present(), 99.8, 2.0).unwrap();
        assert_eq!((it.sources_seen, it.sources_cut), (1000, 2));
        assert!((it.share_cut - 0.332).abs() < it.share_error, "{it:?}");
    }

    #[test]
    fn questions_that_have_no_answer() {
        let (series, names) = (Series::default(), Names::default());
        let limits = api::Limits { schema_version: 1, policies: Vec::new() };
        for query in [
            SuggestQuery { quantile: Some(0.0), ..SuggestQuery::default() },
            SuggestQuery { quantile: Some(100.0), ..SuggestQuery::default() },
            SuggestQuery { quantile: Some(f64::NAN), ..SuggestQuery::default() },
            SuggestQuery { headroom: Some(0.9), ..SuggestQuery::default() },
            SuggestQuery { headroom: Some(f64::INFINITY), ..SuggestQuery::default() },
        ] {
            let error = suggest(&series, &names, &query, &limits, 0).unwrap_err();
            assert_eq!(error.kind, Kind::Invalid, "{query:?}");
        }
        let query = SuggestQuery { policy: Some("web".into()), ..SuggestQuery::default() };
        let error = suggest(&series, &names, &query, &limits, 0).unwrap_err();
        assert_eq!(error.kind, Kind::NotFound);
    }
}
