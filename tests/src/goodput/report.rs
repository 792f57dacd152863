//! What was measured, as tables.

use std::fmt::Write as _;

use serde::Serialize;

use super::{flood::Kind, shield::Shield};

/// Everything that was measured.
#[derive(Serialize)]
pub struct Report {
    /// Of this form of JSON.
    pub schema_version: u32,
    /// Version of the kernel.
    pub kernel: String,
    /// CPUs of the machine.
    pub cpus: usize,
    /// Requests per second of the polite client.
    pub requests_per_second: u32,
    /// Seconds of requests in each cell.
    pub seconds: u32,
    /// The cells.
    pub cells: Vec<Cell>,
}

/// One flood of one rate against one shield.
#[derive(Clone, Serialize)]
pub struct Cell {
    /// Kind of the flood; none in calm.
    pub flood: Option<Kind>,
    /// The shield.
    pub shield: Shield,
    /// Frames per second that were asked for; none for as fast as possible.
    pub flood_asked_per_second: Option<u64>,
    /// Frames per second that were sent.
    pub flood_sent_per_second: f64,
    /// Frames per second that the server's interface got.
    pub flood_received_per_second: f64,
    /// Requests made.
    pub requests: u32,
    /// Requests answered.
    pub answered: u32,
    /// Requests answered, of those that were due each second.
    pub answered_per_second: f64,
    /// Answered, of all.
    pub success_ratio: f64,
    /// Latency of answered requests, in milliseconds.
    pub p50_ms: Option<f64>,
    /// Its 99th percentile.
    pub p99_ms: Option<f64>,
    /// The longest.
    pub max_ms: Option<f64>,
}

impl Cell {
    /// The flood's name, and its rate.
    #[must_use]
    pub fn title(&self) -> (&'static str, String) {
        let rate = match self.flood_asked_per_second {
            None => "unpaced".to_owned(),
            Some(0) => "0".to_owned(),
            Some(rate) => format!("{}k", rate / 1000),
        };
        (self.flood.map_or("none", Kind::name), rate)
    }

    fn is_beside(&self, other: &Self) -> bool {
        (self.flood, self.flood_asked_per_second) == (other.flood, other.flood_asked_per_second)
    }

    /// The cell as a line of the table for a terminal.
    #[must_use]
    pub fn line(&self) -> String {
        let (flood, rate) = self.title();
        format!(
            "{flood:<20} {rate:>8}  {:<9} {:>9.0} {:>11.0} {:>10.1} {:>7.1}% {:>8} {:>8} {:>8}",
            self.shield.name(),
            self.flood_sent_per_second,
            self.flood_received_per_second,
            self.answered_per_second,
            100.0 * self.success_ratio,
            ms(self.p50_ms),
            ms(self.p99_ms),
            ms(self.max_ms),
        )
    }
}

fn ms(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

impl Report {
    /// How it was measured, in a sentence.
    #[must_use]
    pub fn conditions(&self) -> String {
        format!(
            "Linux {}, {} CPUs, one of them the server's; {} requests/s for {} s in each cell, \
             each over a new connection",
            self.kernel, self.cpus, self.requests_per_second, self.seconds
        )
    }

    /// The heading of that table.
    #[must_use]
    pub fn heading() -> String {
        format!(
            "{:<20} {:>8}  {:<9} {:>9} {:>11} {:>10} {:>8} {:>8} {:>8} {:>8}",
            "flood",
            "frames/s",
            "shield",
            "sent/s",
            "received/s",
            "answered/s",
            "answered",
            "p50, ms",
            "p99, ms",
            "max, ms"
        )
    }

    /// The table in Markdown, the shields side by side.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = String::from("| flood | frames/s asked |");
        for measure in ["received/s", "answered", "p50, ms", "p99, ms", "max, ms"] {
            let _ = write!(text, " {measure} |");
        }
        text += "\n|---|--:|--:|--:|--:|--:|--:|\n";
        let is_first = |cell: &&Cell| cell.shield == Shield::ALL[0];
        for first in self.cells.iter().filter(is_first) {
            let (flood, rate) = first.title();
            let _ = write!(text, "| {flood} | {rate} |");
            let columns: [fn(&Cell) -> String; 5] = [
                |cell| format!("{:.0}k", cell.flood_received_per_second / 1e3),
                |cell| format!("{:.1} %", 100.0 * cell.success_ratio),
                |cell| ms(cell.p50_ms),
                |cell| ms(cell.p99_ms),
                |cell| ms(cell.max_ms),
            ];
            for column in columns {
                let beside = self.cells.iter().filter(|cell| cell.is_beside(first));
                let values: Vec<_> = beside.map(column).collect();
                let _ = write!(text, " {} |", values.join(" / "));
            }
            text += "\n";
        }
        let names = Shield::ALL.map(Shield::name).join(" / ");
        format!("{}.\nIn each column: {names}.\n\n{text}", self.conditions())
    }
}
