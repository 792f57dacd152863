//! A small site, served by nginx.

use std::{
    fs,
    net::{Ipv4Addr, TcpStream},
    process::Stdio,
    time::{Duration, Instant},
};

use crate::{
    host::{Host, Running},
    web::PORT,
};

/// The host's own /run, which is gone with it.
const DIRECTORY: &str = "/run/site";
const PATIENCE: Duration = Duration::from_secs(5);

/// A web server that runs until it goes out of scope.
pub struct Site(Running);

impl Site {
    /// Starts nginx on a host and waits until it serves.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn start(host: &Host, cpu: usize) -> Self {
        host.call(|| {
            fs::create_dir(DIRECTORY).expect("a directory");
            fs::write(format!("{DIRECTORY}/index.html"), "x".repeat(1024)).expect("the page");
            fs::write(format!("{DIRECTORY}/nginx.conf"), configuration())
                .expect("the configuration");
        });
        let mut command = host.command("taskset");
        command.args(["-c", &cpu.to_string(), "nginx", "-e", "stderr", "-p", DIRECTORY]);
        command.args(["-c", "nginx.conf"]).stdout(Stdio::null());
        let mut site = Self(Running::start(&mut command));
        let start = Instant::now();
        while !host.call(|| TcpStream::connect((Ipv4Addr::LOCALHOST, PORT)).is_ok()) {
            let ended = site.0.child().try_wait().expect("the process");
            assert!(ended.is_none(), "nginx: {ended:?}");
            assert!(start.elapsed() < PATIENCE, "nginx does not serve");
            std::thread::sleep(Duration::from_millis(10));
        }
        site
    }
}

fn configuration() -> String {
    // One process, so that nothing is left when it is killed.
    let mut text = "daemon off;\nmaster_process off;\nworker_rlimit_nofile 8192;\n\
                    pid nginx.pid;\nerror_log stderr error;\n\
                    events { worker_connections 4096; }\nhttp {\naccess_log off;\n"
        .to_owned();
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        text += &format!("{kind}_temp_path {DIRECTORY}/{kind};\n");
    }
    text + &format!("server {{ listen {PORT}; root {DIRECTORY}; }}\n}}\n")
}
