//! A browser that nobody sees: Chromium, which asks nothing of anybody but the
//! page.

use std::{path::Path, process::Output};

use crate::host::{Host, stderr, text};

const FLAGS: [&str; 12] = [
    "--headless",
    // The tests are root.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    // Some answers of the page's own requests are waited for.
    "--virtual-time-budget=2500",
];

/// What the browser's window is like.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// Whether its user likes it dark.
    pub dark: bool,
}

/// On a desk.
pub const DESK: Window = Window { width: 1280, height: 1100, dark: false };
/// In a hand.
pub const PHONE: Window = Window { width: 390, height: 2000, dark: false };

/// The document as it is after some seconds.
///
/// # Panics
/// If the browser fails.
#[must_use]
pub fn document(host: &Host, url: &str, window: Window) -> String {
    text(&browse(host, url, window, &["--dump-dom".into()]).stdout)
}

/// Writes a PNG of the page as it is after some seconds; says what the page's
/// script had to complain about.
///
/// # Panics
/// If the browser fails.
pub fn picture(host: &Host, url: &str, window: Window, file: &Path) -> String {
    let output = browse(host, url, window, &[format!("--screenshot={}", file.display())]);
    assert!(file.is_file(), "{}", stderr(&output));
    complaints(&output)
}

fn browse(host: &Host, url: &str, window: Window, more: &[String]) -> Output {
    let profile = tempfile::tempdir().expect("a directory");
    let mut command = host.command("chromium");
    command.args(FLAGS).args(more);
    command.arg(format!("--user-data-dir={}", profile.path().display()));
    command.arg(format!("--window-size={},{}", window.width, window.height));
    command.arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!window.dark)));
    command.args(["--enable-logging=stderr", url]).env("HOME", profile.path());
    let output = command.output().unwrap_or_else(|error| panic!("chromium: {error}"));
    assert!(output.status.success(), "{}", stderr(&output));
    output
}

fn complaints(output: &Output) -> String {
    let lines = stderr(output);
    lines.lines().filter(|line| line.contains("CONSOLE")).collect()
}
