//! What is read over HTTP: the metrics, whether all is well, and the page.
//!
//! Nothing can be changed here, and whoever reaches the address may read.

mod fresh;
mod guard;
mod listen;
mod metrics;
mod page;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    extract::{FromRef, State},
    http::{StatusCode, header},
    middleware,
    response::{IntoResponse, Response},
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{net::TcpListener, task::AbortHandle};

pub use self::listen::listen;
use self::{guard::Arrival, metrics::Metrics, page::Views};
use crate::server::Shared;

/// Connections at a time. One more ends the oldest, so that slow clients never
/// shut out a quick one.
const MAX_CONNECTIONS: usize = 64;
/// Longest time in which the head of a request may arrive.
const HEADER_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest life of a connection; each is for one request.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the answers are made of.
#[derive(Clone)]
struct Web {
    shared: Shared,
    metrics: Arc<Metrics>,
    views: Arc<Views>,
}

impl FromRef<Web> for Shared {
    fn from_ref(web: &Web) -> Self {
        web.shared.clone()
    }
}

/// Serves one address, for ever.
pub(crate) async fn serve(listener: TcpListener, shared: Shared) {
    let web = Web { shared, metrics: Arc::new(Metrics::new()), views: Arc::new(Views::new()) };
    let router = Router::new()
        .route("/", get(page))
        .route("/page.json", get(view))
        .route("/metrics", get(scrape))
        .route("/livez", get(alive))
        .route("/readyz", get(ready))
        .fallback(unknown)
        .layer(middleware::from_fn(guard::guard))
        .with_state(web);
    let mut open = VecDeque::<AbortHandle>::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptors left: some will be.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= MAX_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let arrival = Arrival::of(&stream);
        let service = TowerToHyperService::new(router.clone().layer(Extension(arrival)));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service);
        // What goes wrong on a connection is the client's to see.
        let task = tokio::spawn(tokio::time::timeout(CONNECTION_TIMEOUT, connection));
        open.push_back(task.abort_handle());
    }
}

async fn page() -> Response {
    page::page()
}

async fn view(State(web): State<Web>) -> Response {
    web.views.answer(&web.shared).await
}

async fn scrape(State(web): State<Web>) -> Response {
    let text = web.metrics.text(&web.shared).await;
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response()
}

async fn alive() -> &'static str {
    "ok\n"
}

/// Whether every interface is protected and rules are in force; what is not,
/// one line each.
async fn ready(State(shared): State<Shared>) -> (StatusCode, String) {
    let problems = match shared.status().await {
        Ok(status) => unready(&status),
        Err(error) => vec![error.to_string()],
    };
    if problems.is_empty() {
        (StatusCode::OK, "ok\n".into())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, problems.join("\n") + "\n")
    }
}

fn unready(status: &crate::api::Status) -> Vec<String> {
    let off = status.interfaces.iter().filter(|interface| !interface.attached);
    let mut problems: Vec<_> =
        off.map(|interface| format!("{} is not protected", interface.name)).collect();
    if status.interfaces.is_empty() {
        problems.push("no interface is protected".into());
    }
    if status.generation == 0 {
        problems.push("no rules are in force".into());
    }
    problems
}

async fn unknown() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "there is /, /page.json, /metrics, /livez and /readyz\n")
}
