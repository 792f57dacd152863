//! Bans and allowed prefixes.

use std::time::Duration;

use limiter_common::lists::FOREVER;

use super::{Caller, Service};
use crate::{
    api::{self, SCHEMA_VERSION},
    config::Entry,
    error::{Error, Kind, Result},
    lists::{List, Statement, seconds_since_1970},
    plane,
    prefix::Prefix,
};

/// How long a ban lasts unless somebody says otherwise.
const DEFAULT_BAN: Duration = Duration::from_secs(3600);
const LONGEST_REASON: usize = 200;
/// Warnings that one answer holds.
const MOST_WARNINGS: usize = 20;

impl Service {
    /// Adds to a list, all or nothing.
    ///
    /// # Errors
    /// An entry cannot be used, somebody would be locked out, or there is no
    /// room.
    pub fn list_add(
        &mut self,
        list: List,
        request: &api::ListAdd,
        caller: Option<Caller>,
    ) -> Result<api::ListChanged> {
        self.settle();
        let (now, created) = (plane::boot_ns(), seconds_since_1970());
        let statement = |entry: &api::ListAddition| -> Result<(Prefix, Statement)> {
            let prefix: Prefix = entry.prefix.parse()?;
            let until = until(list, entry.duration.as_deref(), now)?;
            let reason = entry.reason.as_deref().map(checked_reason).transpose()?;
            Ok((prefix, Statement { until, created, reason }))
        };
        let statements = request.entries.iter().map(statement).collect::<Result<Vec<_>>>()?;
        if statements.is_empty() {
            return Err(Error::new(Kind::Invalid, "no prefix is named")
                .hint("name one, such as 192.0.2.7 or 2001:db8::/48"));
        }
        let prefixes: Vec<_> = statements.iter().map(|(prefix, _)| *prefix).collect();
        if list == List::Ban && !request.force {
            self.guard_bans(&prefixes, caller)?;
        }
        let mut warnings = Vec::new();
        if list == List::Ban {
            let allowed = prefixes.iter().filter(|prefix| self.is_allowed(**prefix));
            warnings.extend(allowed.take(MOST_WARNINGS).map(|prefix| {
                format!("{prefix} is allowed, and allow beats ban: the ban has no effect")
            }));
        }
        // Noted before packets meet it, as all changes are.
        self.store.said(list, &statements);
        if let Err(error) = self.plane.add(list, statements) {
            self.rewrite();
            return Err(error);
        }
        Ok(api::ListChanged { schema_version: SCHEMA_VERSION, changed: prefixes.len(), warnings })
    }

    /// Removes from a list, all or nothing.
    ///
    /// # Errors
    /// A prefix cannot be read or is not on the list.
    pub fn list_remove(
        &mut self,
        list: List,
        request: &api::ListRemove,
    ) -> Result<api::ListChanged> {
        self.settle();
        let prefixes = request.prefixes.iter().map(|text| Ok(text.parse()?));
        let prefixes = prefixes.collect::<Result<Vec<Prefix>>>()?;
        let absent: Vec<_> = prefixes
            .iter()
            .filter(|prefix| self.plane.statement(list, **prefix).is_none())
            .collect();
        if let Some(first) = absent.first() {
            let more = match absent.len() {
                1 => String::new(),
                count => format!(", nor are {} others", count - 1),
            };
            let (name, problem) = match list {
                List::Ban => ("ban", "banned"),
                List::Allow => ("allow", "allowed"),
            };
            let configured = "; what the configuration says is changed there";
            return Err(Error::new(Kind::NotFound, format!("{first} is not {problem}{more}"))
                .hint(format!("limiterctl {name} list shows what is{configured}")));
        }
        self.store.unsaid(list, &prefixes);
        if let Err(error) = self.plane.remove(list, &prefixes) {
            self.rewrite();
            return Err(error);
        }
        let changed = prefixes.len();
        Ok(api::ListChanged { schema_version: SCHEMA_VERSION, changed, warnings: Vec::new() })
    }

    /// Everything on a list, what the configuration says included.
    pub fn list(&mut self, list: List) -> api::List {
        self.settle();
        let now = plane::boot_ns();
        let said = self.plane.statements(list).filter(|(_, it)| it.until > now);
        let said = said.map(|(prefix, it)| said_entry(prefix, it, now));
        let entries = self.configured(list).iter().map(configured_entry).chain(said).collect();
        api::List { schema_version: SCHEMA_VERSION, entries }
    }

    /// How many prefixes are banned, and at most `most` of them, those that end
    /// first before the others.
    pub fn bans_at_a_glance(&mut self, most: usize) -> api::BansView {
        self.settle();
        let now = plane::boot_ns();
        let mut said: Vec<_> =
            self.plane.statements(List::Ban).filter(|(_, it)| it.until > now).collect();
        let configured = self.configured(List::Ban);
        let count = said.len() + configured.len();
        if said.len() > most {
            said.select_nth_unstable_by_key(most, |(_, it)| it.until);
            said.truncate(most);
        }
        said.sort_by_key(|(_, it)| it.until);
        let said = said.into_iter().map(|(prefix, it)| said_entry(prefix, it, now));
        let first = said.chain(configured.iter().map(configured_entry)).take(most).collect();
        api::BansView { count, first }
    }

    fn configured(&self, list: List) -> &[Entry] {
        let config = self.in_force.policies.config();
        match list {
            List::Allow => &config.allow,
            List::Ban => &config.deny,
        }
    }
}

fn configured_entry(entry: &Entry) -> api::ListEntry {
    api::ListEntry {
        prefix: entry.prefix.to_string(),
        expires_in_seconds: None,
        reason: entry.reason.clone(),
        origin: "config".into(),
        created: None,
    }
}

fn said_entry(prefix: Prefix, said: &Statement, now: u64) -> api::ListEntry {
    api::ListEntry {
        prefix: prefix.to_string(),
        expires_in_seconds: (said.until != FOREVER)
            .then(|| (said.until - now).div_ceil(1_000_000_000)),
        reason: said.reason.clone(),
        origin: "operator".into(),
        created: Some(said.created),
    }
}

/// When an entry ends, in nanoseconds since the boot.
fn until(list: List, duration: Option<&str>, now: u64) -> Result<u64> {
    let time = match (duration, list) {
        (Some("forever"), _) | (None, List::Allow) => return Ok(FOREVER),
        (None, List::Ban) => DEFAULT_BAN,
        (Some(text), _) => duration_of(text)?,
    };
    let time = u64::try_from(time.as_nanos()).unwrap_or(FOREVER);
    Ok(now.saturating_add(time))
}

/// A duration as people write it: 90s, 10m, 1h 30m, 7days; seconds without a
/// unit.
///
/// # Errors
/// It cannot be read, or is zero.
pub fn duration_of(text: &str) -> Result<Duration> {
    let seconds = text.trim().parse().map(Duration::from_secs);
    let time = seconds.or_else(|_| humantime::parse_duration(text)).unwrap_or_default();
    if time.is_zero() {
        return Err(Error::new(Kind::Invalid, format!("'{text}' is no duration"))
            .hint("write one such as 90s, 10m, 1h, 7days or forever"));
    }
    Ok(time)
}

fn checked_reason(text: &str) -> Result<String> {
    if text.len() > LONGEST_REASON || text.contains(char::is_control) {
        return Err(Error::new(Kind::Invalid, "the reason is too long, or more than one line")
            .hint(format!("at most {LONGEST_REASON} bytes without line breaks")));
    }
    Ok(text.into())
}
