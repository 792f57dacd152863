//! What is seen of the traffic, apart from the shield itself: it is asked
//! without waiting for the kernel, and a question costs no packet anything.

mod attack;
mod history;
mod names;
mod near;
mod packet;
mod recent;
mod series;
mod suggest;
mod top;
mod window;

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use limiter_common::sample::Sample;

pub use self::names::Names;
use self::{history::Seconds, recent::Recent, series::Series, window::Window};
use crate::{
    api::{
        self, Events, EventsQuery, History, Limit, Limits, PolicyView, SuggestQuery, Suggestions,
        Top, TopQuery, What,
    },
    config::Attack,
    error::Result,
    plane::{Count, monotonic_ns},
};

/// What was seen lately.
#[derive(Debug, Default)]
pub struct Traffic(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    names: Names,
    recent: Recent,
    window: Window,
    seconds: Seconds,
    attack: attack::Watch,
    series: Series,
    /// Samples that the kernel had no room for.
    lost: u64,
}

impl Traffic {
    /// Notes samples, and how many were lost so far. Takes them one after the
    /// other, so that no question waits for long.
    pub fn note(&self, samples: impl Iterator<Item = Sample>, lost: Option<u64>) {
        let now = (SystemTime::now(), monotonic_ns());
        self.seen().window.forget(now.1);
        for sample in samples {
            let mut seen = self.seen();
            seen.window.note(&sample, now.1);
            seen.series.note(&sample);
            let age = std::time::Duration::from_nanos(now.1.saturating_sub(sample.time_ns));
            seen.recent.note(sample, now.0.checked_sub(age).unwrap_or(now.0));
        }
        let mut seen = self.seen();
        seen.lost = lost.unwrap_or(seen.lost);
    }

    /// Notes what the counters of each interface say now, and how what they
    /// count is called; says if an attack begins or ends. To be done once a
    /// second.
    pub fn count(&self, counts: &[Vec<Count>], names: Names, config: &Attack) -> Option<What> {
        let now_time = SystemTime::now();
        let time = now_time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now_ns = monotonic_ns();
        let now = std::time::Duration::from_nanos(now_ns).as_secs_f64();
        let mut guard = self.seen();
        let seen = &mut *guard;
        seen.series.follow(&names, now_ns);
        seen.names = names;
        let came = seen.seconds.read(counts, now, time.as_secs())?;
        let mut watch = std::mem::take(&mut seen.attack);
        let what = watch.take(&came, config, now_time, || top::dropped_most(seen, now_ns));
        seen.attack = watch;
        let what = what?;
        seen.recent.tell(what.clone(), now_time);
        Some(what)
    }

    /// The attack that goes on, and how many there were.
    pub fn attack(&self) -> (Option<api::Attack>, u64) {
        let seen = self.seen();
        (seen.attack.present(), seen.attack.attacks())
    }

    /// What happened.
    ///
    /// # Errors
    /// The query has an unknown name or an invalid prefix.
    pub fn events(&self, query: &EventsQuery) -> Result<Events> {
        let seen = self.seen();
        seen.recent.events(query, &seen.names, seen.lost)
    }

    /// Samples that the kernel had no room for, since the load.
    pub fn lost(&self) -> u64 {
        self.seen().lost
    }

    /// Who sends most.
    ///
    /// # Errors
    /// The query has an unknown name.
    pub fn top(&self, query: &TopQuery) -> Result<Top> {
        top::top(&self.seen(), query, monotonic_ns())
    }

    /// How near what was sent lately comes to these limits.
    pub fn policies(&self, limits: Vec<Limit>) -> Vec<PolicyView> {
        near::policies(&self.seen(), limits, monotonic_ns())
    }

    /// Packets per second of the last minutes.
    #[must_use]
    pub fn history(&self) -> History {
        self.seen().seconds.history()
    }

    /// Limits that would fit what was seen, beside those in force.
    ///
    /// # Errors
    /// There is no such policy, or a number is out of range.
    pub fn suggest(&self, query: &SuggestQuery, in_force: &Limits) -> Result<Suggestions> {
        let seen = self.seen();
        suggest::suggest(&seen.series, &seen.names, query, in_force, monotonic_ns())
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
