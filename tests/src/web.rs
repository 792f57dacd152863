//! A web server, and a polite client of it.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use http_body_util::{BodyExt as _, Empty};
use hyper::{Request, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::host::Host;

/// Port of the server.
pub const PORT: u16 = 8080;
/// Longer than that, and a person has gone away.
const PATIENCE: Duration = Duration::from_secs(2);
/// The page.
const PAGE: &str = "<!doctype html><title>A page</title><p>It is here.</p>";

/// A server that runs until it goes out of scope.
pub struct Server {
    stop: Arc<tokio::sync::Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server on a host, on all its addresses, with room for so many
    /// connections that are not yet established.
    ///
    /// # Panics
    /// If the port is taken.
    #[must_use]
    pub fn start(host: &Host, backlog: u32) -> Self {
        let stop = Arc::new(tokio::sync::Notify::new());
        let stopped = Arc::clone(&stop);
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = host.spawn(move || {
            runtime().block_on(async move {
                let socket = TcpSocket::new_v6().expect("a socket");
                socket.set_reuseaddr(true).expect("an option");
                socket.bind(SocketAddr::from(([0u16; 8], PORT))).expect("the port");
                let listener = socket.listen(backlog).expect("listening");
                ready.send(()).expect("somebody waits");
                let page = axum::routing::get(|| async { axum::response::Html(PAGE) });
                let big = axum::routing::get(|| async { vec![b'x'; 64 << 20] });
                let site = axum::Router::new().route("/", page).route("/big", big);
                serve(listener, site, stopped).await;
            });
        });
        is_ready.recv().expect("the server starts");
        Self { stop, thread: Some(thread) }
    }
}

async fn serve(listener: TcpListener, site: axum::Router, stop: Arc<tokio::sync::Notify>) {
    tokio::select! {
        served = async { axum::serve(listener, site).await } => served.expect("serving"),
        () = stop.notified() => {}
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed.
            let _ = thread.join();
        }
    }
}

/// What became of one request: the time it took, or that it failed.
pub type Outcome = Option<Duration>;

/// A client that fetches the page again and again, each time over a new
/// connection, until it goes out of scope.
pub struct Client {
    stop: Arc<AtomicBool>,
    outcomes: Arc<Mutex<Vec<Outcome>>>,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    /// Starts a client on a host, so many requests per second.
    #[must_use]
    pub fn start(host: &Host, server: IpAddr, per_second: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let (stopped, record) = (Arc::clone(&stop), Arc::clone(&outcomes));
        let thread = host.spawn(move || {
            runtime().block_on(async move {
                let mut ticks = tokio::time::interval(Duration::from_secs(1) / per_second);
                let mut requests = tokio::task::JoinSet::new();
                while !stopped.load(SeqCst) {
                    ticks.tick().await;
                    // Open-loop: the next one does not wait for this one.
                    let record = Arc::clone(&record);
                    requests.spawn(async move {
                        let outcome = request(server, "/").await.map(|(time, _)| time);
                        record.lock().expect("the record").push(outcome);
                    });
                }
                requests.join_all().await;
            });
        });
        Self { stop, outcomes, thread: Some(thread) }
    }

    /// Takes what has become of requests since the last call.
    ///
    /// # Panics
    /// If the client's thread has.
    #[must_use]
    pub fn take(&self) -> Vec<Outcome> {
        std::mem::take(&mut self.outcomes.lock().expect("the record"))
    }

    /// Ends the client, waits for requests under way, and takes the outcomes.
    #[must_use]
    pub fn finish(mut self) -> Vec<Outcome> {
        self.end();
        self.take()
    }

    fn end(&mut self) {
        self.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed.
            let _ = thread.join();
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.end();
    }
}

/// Fetches the big page once; says how many bytes and in what time.
///
/// # Panics
/// If that fails.
#[must_use]
pub fn download(host: &Host, server: IpAddr) -> (usize, Duration) {
    let fetched = host.call(move || runtime().block_on(request(server, "/big")));
    let (time, bytes) = fetched.expect("the big page");
    (bytes, time)
}

/// One request over a new connection: the time and the length of the page.
async fn request(server: IpAddr, path: &str) -> Option<(Duration, usize)> {
    let start = Instant::now();
    let fetch = async {
        let stream = TcpStream::connect((server, PORT)).await.ok()?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
        let connection = tokio::spawn(connection);
        let request =
            Request::get(path).header("host", "server").body(Empty::<Bytes>::new()).ok()?;
        let answer = sender.send_request(request).await.ok()?;
        let whole = answer.status().is_success();
        let body = answer.into_body().collect().await.ok()?.to_bytes();
        connection.abort();
        whole.then_some(body.len())
    };
    // A big page takes longer than a person's patience with a small one.
    let patience = if path == "/" { PATIENCE } else { 10 * PATIENCE };
    let length = tokio::time::timeout(patience, fetch).await.ok()??;
    (path != "/" || length == PAGE.len()).then(|| (start.elapsed(), length))
}

/// Latencies of what succeeded, in order, and the number of failures.
#[must_use]
pub fn summary(outcomes: &[Outcome]) -> (Vec<Duration>, usize) {
    let mut times: Vec<_> = outcomes.iter().flatten().copied().collect();
    times.sort();
    let failed = outcomes.len() - times.len();
    (times, failed)
}

/// The time below which so many thousandths of the times lie.
#[must_use]
pub fn quantile(sorted: &[Duration], thousandths: usize) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted.get(last * thousandths / 1000).copied().unwrap_or_default()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}
