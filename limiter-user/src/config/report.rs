//! What is wrong with a file, and where.

use std::{fmt, ops::Range};

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use serde::Serialize;

/// Diagnostics of a report; a file of garbage has thousands.
const MOST: usize = 100;
/// Bytes of a line that are shown on each side of a problem in a long one.
const AROUND: usize = 200;
/// Letters of a message; it may name a value of any length.
const LONGEST_MESSAGE: usize = 400;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used, and probably does not do what is meant.
    Warning,
}

impl Severity {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// The problem.
    pub message: String,
    /// The mend, where there is one to name.
    pub hint: Option<String>,
    /// The line's text, or what is around the problem in a long one, and the
    /// bytes of it that the problem lies in.
    #[serde(skip)]
    source: (String, Range<usize>),
}

/// Everything that is wrong with a file, in its order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Name of the file.
    pub file: String,
    /// What is wrong, at most 100 diagnostics.
    pub diagnostics: Vec<Diagnostic>,
    /// How many more there are.
    pub omitted: usize,
}

/// A diagnostic that has its place as bytes of the text.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    pub(super) span: Range<usize>,
    pub(super) message: String,
    pub(super) hint: Option<String>,
}

impl Finding {
    pub(super) fn error(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { severity: Severity::Error, span, message: message.into(), hint: None }
    }

    pub(super) fn warning(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(span, message) }
    }

    #[must_use]
    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// A text by lines.
pub(super) struct Lines<'a> {
    text: &'a str,
    /// Where each line starts.
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let ends = text.match_indices('\n').map(|(at, _)| at + 1);
        Self { text, starts: std::iter::once(0).chain(ends).collect() }
    }

    /// The number, from 1, of the line in which a byte lies.
    pub(super) fn number(&self, byte: usize) -> usize {
        self.starts.partition_point(|start| *start <= byte)
    }

    /// The line of that number, without its end.
    pub(super) fn span(&self, number: usize) -> Range<usize> {
        let start = self.starts[number - 1];
        let end = self.starts.get(number).copied().unwrap_or(self.text.len());
        start..start + self.text[start..end].trim_end_matches(['\n', '\r']).len()
    }

    fn diagnostic(&self, finding: Finding) -> Diagnostic {
        let number = self.number(finding.span.start.min(self.text.len()));
        let Range { start, end } = self.span(number);
        let line = &self.text[start..end];
        let within = |byte: usize| {
            let at = byte.min(line.len());
            (0..=at).rev().find(|at| line.is_char_boundary(*at)).unwrap_or_default()
        };
        let from = within(finding.span.start.saturating_sub(start));
        let to = within(finding.span.end.saturating_sub(start)).max(from);
        let shown = within(from.saturating_sub(AROUND))..within(to.min(from + AROUND) + AROUND);
        let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Diagnostic {
            severity: finding.severity,
            line: small(number),
            column: small(line[..from].chars().count() + 1),
            message: plain(&finding.message),
            hint: finding.hint,
            source: (
                line[shown.clone()].to_owned(),
                from - shown.start..to.min(shown.end) - shown.start,
            ),
        }
    }
}

/// The message with what would garble a terminal made visible.
fn plain(message: &str) -> String {
    let mut plain = String::new();
    for letter in message.chars().take(LONGEST_MESSAGE) {
        if letter.is_control() {
            plain.extend(letter.escape_default());
        } else {
            plain.push(letter);
        }
    }
    if message.chars().nth(LONGEST_MESSAGE).is_some() {
        plain.push_str("...");
    }
    plain
}

impl Report {
    pub(super) fn new(file: &str, lines: &Lines<'_>, mut findings: Vec<Finding>) -> Self {
        let omitted = findings.len().saturating_sub(MOST);
        if omitted > 0 {
            // No warning takes the place of an error.
            findings.sort_by_key(|finding| (finding.severity, finding.span.start));
            findings.truncate(MOST);
        }
        findings.sort_by_key(|finding| (finding.span.start, finding.severity));
        let diagnostics = findings.into_iter().map(|finding| lines.diagnostic(finding)).collect();
        Self { file: file.to_owned(), diagnostics, omitted }
    }

    /// Whether the file cannot be used.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.errors() > 0
    }

    /// How many of the diagnostics are errors.
    #[must_use]
    pub fn errors(&self) -> usize {
        self.diagnostics.iter().filter(|found| found.severity == Severity::Error).count()
    }
}

impl std::error::Error for Report {}

/// Each as a line with its place, the text with the problem underlined, and the
/// mend; without colour.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for found in &self.diagnostics {
            let Diagnostic { line, column, message, .. } = found;
            let severity = found.severity.name();
            writeln!(f, "{}:{line}:{column}: {severity}: {message}", self.file)?;
            let underlined = found.underlined();
            if !underlined.is_empty() {
                writeln!(f, "{underlined}")?;
            }
            if let Some(hint) = &found.hint {
                writeln!(f, "help: {hint}")?;
            }
        }
        match self.omitted {
            0 => Ok(()),
            more => writeln!(f, "{}: and {more} more", self.file),
        }
    }
}

impl Diagnostic {
    fn underlined(&self) -> String {
        let (text, span) = &self.source;
        if text.trim().is_empty() {
            return String::new();
        }
        let snippet = Snippet::source(text)
            .line_start(usize::try_from(self.line).unwrap_or(usize::MAX))
            .annotation(AnnotationKind::Primary.span(span.clone()));
        Renderer::plain().render(&[Group::with_level(Level::ERROR).element(snippet)])
    }
}
