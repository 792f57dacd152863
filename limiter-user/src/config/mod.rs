//! From the text of a configuration file to values that cannot be wrong.
//!
//! A text is parsed, held against the schema, read into a [`Config`], and
//! judged by the rules; each stage tells all that it finds, with its place.

mod default;
mod difference;
mod edit;
mod exact;
mod lists;
mod model;
mod nearest;
mod protocol;
mod ranges;
mod report;
mod rules;
mod scalar;
mod schema;
mod shared;
mod structure;
mod syntax;
mod traffic;
mod tree;
mod values;
mod writing;

pub use self::{
    default::default_text,
    difference::{Difference, diff},
    edit::edit,
    model::{Attack, Config, Daemon, Entry, Match, PerPrefix, Policy, Sources, Total},
    protocol::Protocol,
    ranges::{PortRange, VlanRange},
    report::{Diagnostic, Report, Severity},
    schema::json_schema,
    values::{Algorithm, Argument, Metrics, OnStop, Webhook, XdpMode},
};

use serde::Deserialize;
use toml::de::{DeTable, Deserializer};

use self::{
    report::{Finding, Lines},
    tree::Tree,
};

/// A configuration of thousands of entries is far below.
const LONGEST_TEXT: usize = 1 << 20;

/// What the rules have to know of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// CPUs that there may ever be.
    pub cpus: u32,
    /// Memory in bytes, if it is known.
    pub memory_bytes: Option<u64>,
}

impl Host {
    /// This machine.
    #[must_use]
    pub fn here() -> Self {
        let cpus = aya::util::nr_cpus().ok().and_then(|cpus| u32::try_from(cpus).ok());
        let facts = rustix::system::sysinfo();
        let memory_bytes = facts.totalram.checked_mul(facts.mem_unit.into());
        Self { cpus: cpus.unwrap_or(1), memory_bytes }
    }
}

/// Reads a configuration; `file` is the name that the report gives it.
///
/// # Errors
/// All that is wrong with it, warnings included.
pub fn parse(text: &str, file: &str, host: &Host) -> Result<(Config, Report), Report> {
    let read = read(text);
    let lines = Lines::new(text);
    let mut findings = read.findings;
    if let (Some(config), Some(tree)) = (&read.config, &read.tree) {
        findings.extend(rules::check(config, tree, &lines, host));
    }
    finish(file, &lines, read.config, findings)
}

fn finish(
    file: &str,
    lines: &Lines<'_>,
    config: Option<Config>,
    findings: Vec<Finding>,
) -> Result<(Config, Report), Report> {
    let report = Report::new(file, lines, findings);
    match config {
        Some(config) if !report.has_errors() => Ok((config, report)),
        _ => Err(report),
    }
}

/// What a text says, as far as it can be read.
struct Read<'i> {
    /// The values that are sound, unless the text is no TOML.
    config: Option<Config>,
    tree: Option<Tree<'i>>,
    findings: Vec<Finding>,
}

fn read(text: &str) -> Read<'_> {
    if text.len() > LONGEST_TEXT {
        let message = format!("the file is too large: {} bytes", text.len());
        let finding = Finding::error(0..0, message)
            .hint(format!("at most {LONGEST_TEXT} bytes are read; is it the right file?"));
        return Read { config: None, tree: None, findings: vec![finding] };
    }
    let (mut table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        return Read { config: None, tree: None, findings: syntax::check(text) };
    }
    let mut findings = structure::check(&mut table, schema::schema());
    match Config::deserialize(Deserializer::from(table.clone())) {
        Ok(config) => Read { config: Some(config), tree: Some(Tree(table)), findings },
        Err(error) => {
            findings.push(Finding::error(error.span().unwrap_or(0..0), error.message()));
            Read { config: None, tree: None, findings }
        }
    }
}
