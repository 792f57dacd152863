//! The log: on standard error, or with all its fields in the journal.

use std::{
    fmt::{self, Write as _},
    io::{self, IsTerminal as _},
    os::unix::net::UnixDatagram,
};

use clap::ValueEnum;
use rustix::fs::fstat;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::{
    fmt::{
        FmtContext,
        format::{FormatEvent, FormatFields, Writer},
    },
    registry::LookupSpan,
};

/// Where the journal takes entries with fields.
const JOURNAL: &str = "/run/systemd/journal/socket";

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Lines for people; under systemd, entries of the journal with fields
    Text,
    /// One JSON document per line
    Json,
}

/// Starts the log, which is written as long as the returned value lives. When
/// nobody reads it any more, or not fast enough, the shield goes on without.
pub fn start(format: Format) -> WorkerGuard {
    if format == Format::Text
        && let Some(journal) = journal()
    {
        let (writer, guard) = tracing_appender::non_blocking(journal);
        let log = tracing_subscriber::fmt().with_writer(writer).log_internal_errors(false);
        log.event_format(Entry).init();
        return guard;
    }
    let (writer, guard) = tracing_appender::non_blocking(io::stderr());
    let log =
        tracing_subscriber::fmt().with_writer(writer).with_target(false).log_internal_errors(false);
    match format {
        Format::Text => log.with_ansi(io::stderr().is_terminal()).init(),
        Format::Json => log.json().flatten_event(true).init(),
    }
    guard
}

/// The journal, if standard error goes there (`JOURNAL_STREAM` in
/// systemd.exec(5)).
fn journal() -> Option<Journal> {
    let stream = std::env::var("JOURNAL_STREAM").ok()?;
    let stderr = fstat(io::stderr()).ok()?;
    if stream != format!("{}:{}", stderr.st_dev, stderr.st_ino) {
        return None;
    }
    let socket = UnixDatagram::unbound().ok()?;
    socket.connect(JOURNAL).ok()?;
    Some(Journal(socket))
}

/// Takes one whole entry at a time.
struct Journal(UnixDatagram);

impl io::Write for Journal {
    fn write(&mut self, entry: &[u8]) -> io::Result<usize> {
        self.0.send(entry)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An entry as the journal takes it: a field per line
/// (systemd.io/JOURNAL_NATIVE_PROTOCOL).
struct Entry;

impl<S, N> FormatEvent<S, N> for Entry
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        // As in syslog(3).
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        let mut fields = Fields(format!("SYSLOG_IDENTIFIER=limiterd\nPRIORITY={priority}\n"));
        event.record(&mut fields);
        writer.write_str(&fields.0)
    }
}

struct Fields(String);

impl Fields {
    fn add(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.0.push_str("MESSAGE=");
        } else {
            let name = field.name().replace('.', "_").to_ascii_uppercase();
            // Into a string, nothing can fail.
            let _ = write!(self.0, "LIMITERD_{name}=");
        }
        // A line is a field.
        self.0.extend(value.chars().map(|it| if it == '\n' { ' ' } else { it }));
        self.0.push('\n');
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, &format!("{value:?}"));
    }
}
