//! The real binaries on a host.

use std::{
    collections::BTreeMap,
    path::Path,
    process::{ChildStderr, Output, Stdio},
    time::{Duration, Instant},
};

use limiter_user::{
    api::{History, Limits, List, Stats, Status},
    client::Client,
};
use rustix::process::Signal;

use crate::host::{Host, Running, binary, stderr};

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
        Self::start_program(host, &binary("limiterd"), arguments)
    }

    /// The same with any program.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn start_program(host: &Host, program: &Path, arguments: &str) -> Self {
        Self::spawn(host, program, arguments).ready()
    }

    /// Starts it and does not wait.
    #[must_use]
    pub fn spawn(host: &Host, program: &Path, arguments: &str) -> Self {
        let mut command = host.command(program);
        command.args(arguments.split_whitespace()).stderr(Stdio::piped());
        let socket = arguments.split_once("--socket ").map_or_else(String::new, |(_, rest)| {
            format!("--socket {} ", rest.split_whitespace().next().unwrap_or_default())
        });
        Self { host: host.clone(), process: Running::start(&mut command), socket }
    }

    /// Waits until it answers.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn ready(mut self) -> Self {
        let start = Instant::now();
        while !self.ctl("status").status.success() {
            let ended = self.process.child().try_wait().expect("the process").is_some();
            if ended || start.elapsed() > PATIENCE {
                panic!("limiterd: {}", stderr(&self.kill()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self
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

    /// Packets per second of the last minutes.
    ///
    /// # Panics
    /// If the daemon does not answer as it should.
    #[must_use]
    pub fn history(&self) -> History {
        self.host.call(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let client = Client::new(Path::new("/run/limiterd/ro.sock"));
            runtime.expect("a runtime").block_on(client.history()).expect("the history")
        })
    }

    /// The limits.
    ///
    /// # Panics
    /// If the daemon does not answer as it should.
    #[must_use]
    pub fn limits(&self) -> Limits {
        serde_json::from_str(&self.ask("-o json limit show")).expect("limits")
    }

    /// What is banned, by prefix, and why.
    ///
    /// # Panics
    /// If the daemon does not answer as it should.
    #[must_use]
    pub fn bans(&self) -> BTreeMap<String, Option<String>> {
        let list: List = serde_json::from_str(&self.ask("-o json ban list")).expect("bans");
        list.entries.into_iter().map(|it| (it.prefix, it.reason)).collect()
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

    /// The log from now on.
    ///
    /// # Panics
    /// If it was taken before.
    pub fn take_log(&mut self) -> ChildStderr {
        self.process.child().stderr.take().expect("the log")
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

/// Runs limiterd on a host until it ends.
///
/// # Panics
/// If it cannot be started.
#[must_use]
pub fn limiterd(host: &Host, arguments: &str) -> Output {
    let mut command = host.command(binary("limiterd"));
    command.args(arguments.split_whitespace()).output().expect("limiterd")
}
