//! What is seen of the traffic, apart from the shield itself: it is asked
//! without waiting for the kernel, and a question costs no packet anything.

use crate::{
    api::{Events, EventsQuery, History, SuggestQuery, Suggestions, Top, TopQuery, What},
    error::Result,
};

/// What was seen lately.
#[derive(Debug, Default)]
pub struct Traffic {}

impl Traffic {
    /// Notes that something happened.
    pub fn tell(&self, what: What) {
        let _ = what;
    }

    /// What happened.
    ///
    /// # Errors
    /// The query has an unknown name or an invalid prefix.
    pub fn events(&self, query: &EventsQuery) -> Result<Events> {
        let _ = query;
        Ok(Events::default())
    }

    /// Who sends most.
    ///
    /// # Errors
    /// The query has an unknown name.
    pub fn top(&self, query: &TopQuery) -> Result<Top> {
        let _ = query;
        Ok(Top::default())
    }

    /// Packets per second of the last minutes.
    #[must_use]
    pub fn history(&self) -> History {
        History::default()
    }

    /// Limits that would fit what was seen.
    ///
    /// # Errors
    /// There is no such policy, or a number is out of range.
    pub fn suggest(&self, query: &SuggestQuery) -> Result<Suggestions> {
        let _ = query;
        Ok(Suggestions::default())
    }
}
