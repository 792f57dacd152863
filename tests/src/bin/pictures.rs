//! Takes the pictures of what limiterd shows: the page, the live screen, the
//! events, and the board for Grafana, all of a server under a flood.
//!
//! Everything happens in network namespaces of this process, which vanish with
//! it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    thread::sleep,
    time::{Duration, SystemTime},
};

use clap::Parser;
use limiter_tests::{
    browser::{DESK, PHONE, Window, picture},
    host::Running,
    scene::Scene,
    terminal::Terminal,
};

const PAGE: &str = "http://127.0.0.1:9898/";
const PROMETHEUS: &str = "127.0.0.1:9090";
const SCRAPES: &str = "\
global:
  scrape_interval: 1s
scrape_configs:
  - job_name: limiterd
    static_configs:
      - targets: ['127.0.0.1:9898']
";
const BOARD: &str = include_str!("../pictures/board.html");
/// Before the flood, and after it has begun.
const QUIET: Duration = Duration::from_secs(20);
const FLOOD: Duration = Duration::from_secs(25);

/// Takes the pictures of what limiterd shows.
#[derive(Parser)]
struct Arguments {
    /// Where to
    #[arg(long, value_name = "DIR", default_value = "tests/figures")]
    to: PathBuf,
    /// The board
    #[arg(long, value_name = "FILE", default_value = "contrib/grafana/limiterd.json")]
    board: PathBuf,
}

fn main() {
    let Arguments { to, board } = Arguments::parse();
    // The browser has a working directory of its own.
    let to = to.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", to.display()));
    let board = fs::read_to_string(&board).expect("the board");
    let directory = tempfile::tempdir().expect("a directory");
    let mut scene = Scene::quiet();
    let _prometheus = prometheus(&scene, directory.path());
    sleep(QUIET);
    scene.flood();
    sleep(FLOOD);

    let host = &scene.net.server;
    let take = |url: &str, window: Window, name: &str| {
        let file = to.join(name);
        let complaints = picture(host, url, window, &file);
        assert_eq!(complaints, "", "{name}");
        println!("{}", file.display());
    };
    take(PAGE, Window { height: 1310, ..DESK }, "page.png");
    take(PAGE, Window { height: 1310, dark: true, ..DESK }, "page-dark.png");
    take(PAGE, PHONE, "page-phone.png");

    let file = |name: &str, text: String| {
        let file = directory.path().join(name);
        fs::write(&file, text).expect("a file");
        format!("file://{}", file.display())
    };
    let top = Terminal::start(host, "top", (80, 24), &[]);
    top.wait_for_words("ATTACK");
    sleep(Duration::from_secs(2));
    let shown = |lines: u32| Window { width: 80 * 9 + 24, height: lines * 19 + 24, dark: true };
    take(&file("top.html", top.html()), shown(24), "top.png");
    let events = Terminal::start(host, "events -n 24", (140, 25), &[]);
    let (_, events) = events.wait();
    let wide = Window { width: 140 * 9 + 24, ..shown(25) };
    take(&file("events.html", events.html()), wide, "events.png");

    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    let text = BOARD
        .replace("@PROMETHEUS@", &format!("http://{PROMETHEUS}"))
        .replace("@NOW@", &now.as_secs().to_string())
        .replace("@BOARD@", &board);
    let window = Window { width: 1280, height: 1260, dark: true };
    take(&file("board.html", text), window, "board.png");
}

/// Reads the metrics each second.
fn prometheus(scene: &Scene, directory: &Path) -> Running {
    let config = directory.join("prometheus.yml");
    fs::write(&config, SCRAPES).expect("a file");
    let mut command = scene.net.server.command("prometheus");
    command.arg(format!("--config.file={}", config.display()));
    command.arg(format!("--storage.tsdb.path={}", directory.join("data").display()));
    command.arg(format!("--web.listen-address={PROMETHEUS}"));
    Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()))
}
