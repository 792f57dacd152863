//! The real binaries on a host.

use std::{
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use limiter_user::api::{Limits, Stats, Status};
use rustix::process::Signal;

use crate::host::{Host, Running, binary};

const PATIENCE: Duration = Duration::from_secs(10);

/// A running limiterd.
pub struct Daemon {
    host: Host,
    process: Running,
    /// `--socket PATH` for limiterctl, if the daemon was given one.
    socket: String,
}

impl Daemon {
    /// Starts limiterd on a host and waits until it answers.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn start(host: &Host, arguments: &str) -> Self {
        let mut command = host.command(binary("limiterd"));
        command.args(arguments.split_whitespace()).stderr(Stdio::piped());
        let socket = arguments.split_once("--socket ").map_or_else(String::new, |(_, rest)| {
            format!("--socket {} ", rest.split_whitespace().next().unwrap_or_default())
        });
        let process = Running::start(&mut command);
        let mut daemon = Self { host: host.clone(), process, socket };
        let start = Instant::now();
        while !daemon.ctl("status").status.success() {
            let ended = daemon.process.child().try_wait().expect("the process").is_some();
            if ended || start.elapsed() > PATIENCE {
                let output = daemon.kill();
                panic!("limiterd {arguments}: {}", String::from_utf8_lossy(&output.stderr));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        daemon
    }

    /// Runs limiterctl on the daemon's host.
    #[must_use]
    pub fn ctl(&self, arguments: &str) -> Output {
        ctl(&self.host, &format!("{}{arguments}", self.socket))
    }

    /// Runs limiterctl and expects success; gives what it printed.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn ask(&self, arguments: &str) -> String {
        let output = self.ctl(arguments);
        assert!(
            output.status.success(),
            "limiterctl {arguments}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("text")
    }

    /// The counters.
    ///
    /// # Panics
    /// If the daemon does not answer as it should.
    #[must_use]
    pub fn stats(&self) -> Stats {
        serde_json::from_str(&self.ask("-o json stats")).expect("stats")
    }

    /// The status.
    ///
    /// # Panics
    /// If the daemon does not answer as it should.
    #[must_use]
    pub fn status(&self) -> Status {
        serde_json::from_str(&self.ask("-o json status")).expect("status")
    }

    /// The limits.
    ///
    /// # Panics
    /// If the daemon does not answer as it should.
    #[must_use]
    pub fn limits(&self) -> Limits {
        serde_json::from_str(&self.ask("-o json limit show")).expect("limits")
    }

    /// Packets of one policy: passed, dropped, would drop.
    ///
    /// # Panics
    /// If there is no such policy.
    #[must_use]
    pub fn policy(&self, name: &str) -> [u64; 3] {
        let stats = self.stats();
        let policy = stats.policies.iter().find(|policy| policy.name == name);
        let policy = policy.unwrap_or_else(|| panic!("no policy {name}"));
        [policy.passed.packets, policy.dropped.packets, policy.would_drop.packets]
    }

    /// Number of its process.
    pub fn pid(&mut self) -> u32 {
        self.process.child().id()
    }

    /// Sends the daemon a signal.
    pub fn signal(&mut self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Sends SIGTERM and waits for the end.
    #[must_use]
    pub fn stop(mut self) -> Output {
        self.process.signal(Signal::TERM);
        self.process.wait()
    }

    /// Waits for the end that it comes to by itself.
    #[must_use]
    pub fn wait(self) -> Output {
        self.process.wait()
    }

    /// Sends SIGKILL and waits for the end.
    #[must_use]
    pub fn kill(mut self) -> Output {
        // It may have ended by itself.
        let _ = self.process.child().kill();
        self.process.wait()
    }
}

/// Runs limiterctl on a host.
///
/// # Panics
/// If it cannot be started.
#[must_use]
pub fn ctl(host: &Host, arguments: &str) -> Output {
    let mut command = host.command(binary("limiterctl"));
    command.args(arguments.split_whitespace()).output().expect("limiterctl")
}
