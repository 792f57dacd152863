//! A terminal that nobody sees, and what a program shows on it.

use std::{
    fmt::Write as _,
    io::{Read as _, Write},
    num::NonZero,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use portable_pty::{Child, CommandBuilder, ExitStatus, MasterPty, PtySize, native_pty_system};
use vt100::{Color, Parser, Screen};

use crate::host::{Host, binary};

const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A program at work on a terminal; it ends when this goes out of scope.
pub struct Terminal {
    child: Box<dyn Child + Send + Sync>,
    keys: Box<dyn Write + Send>,
    screen: Arc<Mutex<Parser>>,
    // What is shown ends with it.
    _master: Box<dyn MasterPty + Send>,
}

impl Terminal {
    /// Starts `limiterctl` on a host, with more in its environment.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(
        host: &Host,
        arguments: &str,
        (columns, rows): (u16, u16),
        environment: &[(&'static str, &'static str)],
    ) -> Self {
        let mut command = CommandBuilder::new(binary("limiterctl"));
        command.args(arguments.split_whitespace());
        command.env("TERM", "xterm-256color");
        command.env_remove("NO_COLOR");
        for (key, value) in environment {
            command.env(key, value);
        }
        let size = PtySize { rows, cols: columns, pixel_width: 0, pixel_height: 0 };
        let (child, master) = host.call(move || {
            let pair = native_pty_system().openpty(size).expect("a terminal");
            (pair.slave.spawn_command(command).expect("limiterctl"), pair.master)
        });
        let keys = master.take_writer().expect("its keyboard");
        let mut shown = master.try_clone_reader().expect("its screen");
        let [rows, columns] = [rows, columns].map(|it| NonZero::new(it).expect("a size"));
        let screen = Arc::new(Mutex::new(Parser::new(rows, columns, 0)));
        let parser = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = shown.read(&mut bytes) {
                locked(&parser).process(&bytes[..read]);
            }
        });
        Self { child, keys, screen, _master: master }
    }

    /// Types.
    ///
    /// # Panics
    /// If the program is gone.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).and_then(|()| self.keys.flush()).expect("a keyboard");
    }

    /// Waits until the screen is as wanted; gives its text.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait_for(&self, what: &str, is_wanted: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let text = self.text();
            if is_wanted(&text) {
                return text;
            }
            assert!(start.elapsed() < PATIENCE, "{what}:\n{text}");
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits until the screen shows some words; gives all of its text.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait_for_words(&self, words: &str) -> String {
        self.wait_for(words, |text| text.contains(words))
    }

    /// The lines on the screen.
    #[must_use]
    pub fn text(&self) -> String {
        locked(&self.screen).screen().contents()
    }

    /// Whether anything on it has a colour.
    #[must_use]
    pub fn has_colour(&self) -> bool {
        let parser = locked(&self.screen);
        let (rows, columns) = parser.screen().size();
        let columns = columns.get();
        let mut cells =
            (0..rows.get()).flat_map(|row| (0..columns).map(move |column| (row, column)));
        cells.any(|(row, column)| {
            let cell = parser.screen().cell(row, column);
            cell.is_some_and(|cell| {
                (cell.fgcolor(), cell.bgcolor()) != (Color::Default, Color::Default)
            })
        })
    }

    /// Whether the program has left the screen as it found it.
    #[must_use]
    pub fn is_restored(&self) -> bool {
        let parser = locked(&self.screen);
        !parser.screen().alternate_screen() && !parser.screen().hide_cursor()
    }

    /// The screen as a document that a browser shows.
    #[must_use]
    pub fn html(&self) -> String {
        html(locked(&self.screen).screen())
    }

    /// Waits for the end of the program.
    ///
    /// # Panics
    /// If it does not end in time.
    #[must_use]
    pub fn wait(mut self) -> (ExitStatus, Self) {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("waiting") {
                // What it has written last is on its way.
                std::thread::sleep(LOOK_EVERY);
                return (status, self);
            }
            assert!(start.elapsed() < PATIENCE, "it goes on:\n{}", self.text());
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn locked(parser: &Mutex<Parser>) -> MutexGuard<'_, Parser> {
    parser.lock().unwrap_or_else(PoisonError::into_inner)
}

fn html(screen: &Screen) -> String {
    let (rows, columns) = screen.size();
    let mut lines = String::new();
    for row in 0..rows.get() {
        for column in 0..columns.get() {
            let Some(cell) = screen.cell(row, column) else {
                continue;
            };
            let (mut text, mut back) =
                (colour(cell.fgcolor(), "#d8dee9"), colour(cell.bgcolor(), "#14181f"));
            if cell.inverse() {
                std::mem::swap(&mut text, &mut back);
            }
            let weight = if cell.bold() { "bold" } else { "normal" };
            let opacity = if cell.dim() { "0.65" } else { "1" };
            let line = if cell.underline() { "underline" } else { "none" };
            let shown = match cell.contents() {
                "" => " ",
                shown => shown,
            };
            let shown = shown.replace('&', "&amp;").replace('<', "&lt;");
            let style = format!(
                "color:{text};background:{back};font-weight:{weight};opacity:{opacity};\
                 text-decoration:{line}"
            );
            // Into a string, nothing can fail.
            let _ = write!(lines, "<span style=\"{style}\">{shown}</span>");
        }
        lines.push('\n');
    }
    format!(
        "<!DOCTYPE html><meta charset=\"utf-8\"><style>body {{ margin: 0; background: #14181f; }} \
         pre {{ margin: 12px; font: 15px/19px 'DejaVu Sans Mono', monospace; }} \
         span {{ display: inline-block; vertical-align: top; width: 9px; height: 19px; overflow: hidden; }}</style>\
         <pre>{lines}</pre>"
    )
}

/// The sixteen colours of a terminal, as many people have them.
fn colour(colour: Color, default: &str) -> String {
    const NAMED: [&str; 16] = [
        "#14181f", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d8dee9",
        "#5c6370", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#ffffff",
    ];
    match colour {
        Color::Idx(index) => NAMED.get(usize::from(index)).copied().unwrap_or(default).to_owned(),
        Color::Rgb(red, green, blue) => format!("rgb({red},{green},{blue})"),
        Color::Default => default.to_owned(),
    }
}
