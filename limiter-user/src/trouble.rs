//! Packets that met trouble of our own, as long as it is news.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use limiter_common::verdict::Reason;

/// For how long trouble is reported after it is over.
const WINDOW: Duration = Duration::from_secs(60);
/// Time between two samples that are kept.
const STEP: Duration = Duration::from_secs(5);

/// Counts of the reasons that mean trouble, since the load.
pub(crate) type Counts = [(Reason, u64); 3];

/// No packet.
pub(crate) const NONE: Counts =
    [(Reason::MapFull, 0), (Reason::Contended, 0), (Reason::Internal, 0)];

/// What was counted in the last minute.
#[derive(Debug)]
pub(crate) struct Trouble {
    /// The oldest first; one of them at least as old as the window, if the
    /// daemon is.
    samples: VecDeque<(Instant, Counts)>,
}

impl Trouble {
    /// Since now, when so much is counted.
    pub(crate) fn new(now: Instant, counts: Counts) -> Self {
        Self { samples: VecDeque::from([(now, counts)]) }
    }

    /// Notes what is counted now.
    pub(crate) fn note(&mut self, now: Instant, counts: Counts) {
        if self.samples.back().is_some_and(|(then, _)| now.duration_since(*then) < STEP) {
            return;
        }
        self.samples.push_back((now, counts));
        let is_old = |sample: &(Instant, Counts)| now.duration_since(sample.0) >= WINDOW;
        while self.samples.get(1).is_some_and(is_old) {
            self.samples.pop_front();
        }
    }

    /// What is wrong if so much is counted now, one sentence each.
    pub(crate) fn problems(&self, counts: Counts) -> impl Iterator<Item = String> {
        self.news(counts).map(|(reason, packets)| sentence(reason, packets))
    }

    /// The same in words that stay while it lasts.
    pub(crate) fn states(&self, counts: Counts) -> impl Iterator<Item = &'static str> {
        self.news(counts).map(|(reason, _)| state(reason))
    }

    fn news(&self, counts: Counts) -> impl Iterator<Item = (Reason, u64)> {
        let before = self.samples.front().map_or(NONE, |(_, counts)| *counts);
        let news = counts.into_iter().zip(before);
        news.filter(|((_, now), (_, then))| now > then)
            .map(|((reason, now), (_, then))| (reason, now - then))
    }
}

fn state(reason: Reason) -> &'static str {
    match reason {
        Reason::MapFull => {
            "the table of sources is full, and new ones share the limit of untracked ones; raise \
             --max-sources"
        }
        Reason::Contended => "CPUs contend for one bucket, and drop packets for it",
        _ => "packets pass because no rules are in force; restart limiterd",
    }
}

fn sentence(reason: Reason, packets: u64) -> String {
    let what = match reason {
        Reason::MapFull => {
            "found no room in the table of sources, and share the limit of untracked ones; raise \
             --max-sources"
        }
        Reason::Contended => "were dropped because CPUs contended for one bucket",
        _ => "passed because no rules were in force; restart limiterd",
    };
    format!("{packets} packets of the last minute {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_news_for_a_minute() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let full = |packets| [(Reason::MapFull, packets), NONE[1], NONE[2]];
        let mut trouble = Trouble::new(start, NONE);
        assert_eq!(trouble.problems(NONE).count(), 0);
        let mut states = Vec::new();
        for second in (0..600u64).step_by(2) {
            // From the 100th second to the 200th, one packet each.
            let counted = full(u64::min(second.saturating_sub(100), 100));
            trouble.note(at(second), counted);
            let problems: Vec<_> = trouble.problems(counted).collect();
            let state: Vec<_> = trouble.states(counted).collect();
            assert_eq!(state.len(), problems.len());
            if states.last() != Some(&state) {
                states.push(state);
            }
            match second {
                102..260 => assert!(!problems.is_empty(), "second {second}"),
                // The sample before it may be so much older.
                260..266 => {}
                _ => assert!(problems.is_empty(), "second {second}: {problems:?}"),
            }
            assert!(trouble.samples.len() < 16);
        }
        // It began once, and was over once.
        assert_eq!(states.iter().map(Vec::len).collect::<Vec<_>>(), [0, 1, 0]);
        let problems: Vec<_> = trouble.problems(full(107)).collect();
        assert!(problems[0].starts_with("7 packets of the last minute found no room"));
    }
}
