//! What a configuration must keep to beyond the form of its keys and values.

mod entries;
mod matches;
mod policies;
mod sources;

use std::collections::HashSet;

use super::{
    Config, Host,
    report::{Finding, Lines},
    tree::{Span, Tree},
};

/// Everything that breaks a rule.
pub(super) fn check(
    config: &Config,
    tree: &Tree<'_>,
    lines: &Lines<'_>,
    host: &Host,
) -> Vec<Finding> {
    let mut rules = Rules { config, tree, lines, findings: Vec::new() };
    rules.interfaces();
    rules.sources(host);
    rules.attack();
    rules.policies();
    rules.entries();
    rules.findings
}

struct Rules<'a> {
    config: &'a Config,
    tree: &'a Tree<'a>,
    lines: &'a Lines<'a>,
    findings: Vec<Finding>,
}

impl Rules<'_> {
    fn error(&mut self, span: Span, message: impl Into<String>, hint: impl Into<String>) {
        self.findings.push(Finding::error(span, message).hint(hint));
    }

    fn warning(&mut self, span: Span, message: impl Into<String>, hint: impl Into<String>) {
        self.findings.push(Finding::warning(span, message).hint(hint));
    }

    /// The line, from 1, on which the value of that place stands.
    fn line(&self, place: &str) -> usize {
        self.lines.number(self.tree.value(place).start)
    }

    fn attack(&mut self) {
        if let Some(program) = self.config.attack.command.first()
            && !program.0.starts_with('/')
        {
            let span = self.tree.value("attack.command.0");
            let message = format!("'{}' is no absolute path", program.0.escape_debug());
            self.error(span, message, "name the program from the root, such as /usr/bin/logger");
        }
    }

    fn interfaces(&mut self) {
        let mut seen = HashSet::new();
        for (index, name) in self.config.daemon.interfaces.iter().enumerate() {
            if !seen.insert(name) {
                let span = self.tree.value(&format!("daemon.interfaces.{index}"));
                let message = format!("the interface '{name}' is named twice");
                self.error(span, message, "name it once");
            }
        }
    }
}
