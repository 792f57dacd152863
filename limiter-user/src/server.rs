//! What the daemon answers at its control sockets.

use std::{
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Extension, Json, Router,
    extract::{
        DefaultBodyLimit, Path as UrlPath, Query, State,
        rejection::{JsonRejection, QueryRejection},
    },
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{any, get, patch, post},
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use serde::{Deserialize, Serialize};
use tokio::{
    net::UnixListener,
    sync::{Semaphore, watch},
};
use tower_http::timeout::TimeoutLayer;

use crate::{
    api::{Detached, Failure, LimitChange, SCHEMA_VERSION},
    error::{Error, Kind, Result},
    service::Service,
    sockets::Sockets,
};

/// Longest body of a request, bytes.
const MAX_BODY: usize = 64 << 10;
/// Longest time for one request.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Longest time in which the head of a request may arrive.
const HEADER_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest life of a connection; a client makes another.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Connections at a time on one socket.
const MAX_CONNECTIONS: usize = 64;
/// Time between two looks at the interfaces.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);
/// Pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long the answer to the last request may take to be read.
const ANSWER_TIME: Duration = Duration::from_millis(200);
/// Who is at the other end.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    uid: Option<u32>,
    pid: Option<i32>,
}

/// The service, until it is detached.
#[derive(Clone)]
struct Shared {
    service: Arc<Mutex<Option<Service>>>,
    stop: watch::Sender<bool>,
}

impl Shared {
    /// Runs `work` on the service, off the threads that serve sockets: it
    /// waits for the kernel.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Option<Service>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let service = Arc::clone(&self.service);
        tokio::task::spawn_blocking(move || work(&mut lock(&service)))
            .await
            .unwrap_or_else(|_| Err(Error::failed("the daemon gave up on this request")))
    }
}

fn running(service: &mut Option<Service>) -> Result<&mut Service> {
    service.as_mut().ok_or_else(|| Error::failed("the protection has been taken off"))
}

/// Serves until `shutdown` is done or a client has asked to detach. Gives the
/// service back if it is still attached.
///
/// # Errors
/// A socket cannot be used any more.
pub async fn serve(
    sockets: Sockets,
    service: Service,
    shutdown: impl Future<Output = ()>,
) -> Result<Option<Service>> {
    let (stop, stopped) = watch::channel(false);
    let shared = Shared { service: Arc::new(Mutex::new(Some(service))), stop };
    let read = Router::new()
        .route("/v1/status", get(status))
        .route("/v1/stats", get(stats))
        .route("/v1/limits", get(limits))
        .route("/v1/limits/{policy}", get(limit));
    let admin = read
        .clone()
        .route("/v1/limits/{policy}", patch(change))
        .route("/v1/detach", post(detach))
        .method_not_allowed_fallback(unknown);
    let read = read.route("/v1/detach", any(not_here)).method_not_allowed_fallback(not_here);
    let finish = |router: Router<Shared>| {
        router
            .fallback(unknown)
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .layer(TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, TIMEOUT))
            .with_state(shared.clone())
    };
    let Sockets { admin: admin_socket, read: read_socket, files } = sockets;
    tokio::select! {
        () = accept(admin_socket, finish(admin)) => {}
        () = accept(read_socket, finish(read)) => {}
        () = watch_attachments(&shared) => {}
        () = shutdown => {}
        () = detached(stopped) => {}
    }
    drop(files);
    let service = lock(&shared.service).take();
    Ok(service)
}

/// Writes to the log when the protection of an interface changes by somebody
/// else's doing, for ever.
async fn watch_attachments(shared: &Shared) {
    let mut known = Vec::new();
    let mut ticks = tokio::time::interval(WATCH_INTERVAL);
    loop {
        ticks.tick().await;
        let look = |service: &mut Option<Service>| running(service)?.watch();
        // The next look is not far.
        let Ok(problems) = shared.run(look).await else {
            continue;
        };
        for problem in problems.iter().filter(|problem| !known.contains(*problem)) {
            tracing::warn!("{problem}");
        }
        for problem in known.iter().filter(|problem| !problems.contains(problem)) {
            tracing::info!("no longer so: {problem}");
        }
        known = problems;
    }
}

/// Serves one socket, for ever. Each has connections of its own, so that those
/// who may only read cannot shut out those who may change; a client that keeps
/// a connection without asking anything loses it.
async fn accept(listener: UnixListener, router: Router) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptors left: some will be.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Without room, the connection is closed at once.
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            continue;
        };
        let peer = stream.peer_cred().map_or_else(
            |_| Peer::default(),
            |peer| Peer { uid: Some(peer.uid()), pid: peer.pid() },
        );
        let service = TowerToHyperService::new(router.clone().layer(Extension(peer)));
        tokio::spawn(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            // What goes wrong on a connection is the client's to see.
            let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
            drop(place);
        });
    }
}

/// The service, also after a request that failed badly: it must still be
/// possible to detach.
fn lock(service: &Mutex<Option<Service>>) -> MutexGuard<'_, Option<Service>> {
    service.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Done when a client has asked to detach and has had time to read the answer.
async fn detached(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender is gone, which is a stop as well.
    let _ = stopped.wait_for(|stop| *stop).await;
    tokio::time::sleep(ANSWER_TIME).await;
}

/// An error as an answer.
struct Refusal(Error);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self.0.kind {
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::Permission => StatusCode::FORBIDDEN,
            Kind::Invalid | Kind::Usage => StatusCode::UNPROCESSABLE_ENTITY,
            Kind::Failed | Kind::Unreachable => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, Json(Failure::from(&self.0))).into_response()
    }
}

type Answer<T> = std::result::Result<Json<T>, Refusal>;

fn answer<T: Serialize>(result: Result<T>) -> Answer<T> {
    result.map(Json).map_err(Refusal)
}

async fn status(State(shared): State<Shared>) -> Answer<crate::api::Status> {
    answer(shared.run(|service| running(service)?.status()).await)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StatsQuery {
    interface: Option<String>,
    policy: Option<String>,
}

async fn stats(
    State(shared): State<Shared>,
    query: std::result::Result<Query<StatsQuery>, QueryRejection>,
) -> Answer<crate::api::Stats> {
    let Query(query) = query.map_err(|error| invalid(&error.body_text()))?;
    let work = move |service: &mut Option<Service>| {
        running(service)?.stats(query.interface.as_deref(), query.policy.as_deref())
    };
    answer(shared.run(work).await)
}

async fn limits(State(shared): State<Shared>) -> Answer<crate::api::Limits> {
    answer(shared.run(|service| running(service)?.limits(None)).await)
}

async fn limit(
    State(shared): State<Shared>,
    UrlPath(policy): UrlPath<String>,
) -> Answer<crate::api::Limits> {
    answer(shared.run(move |service| running(service)?.limits(Some(&policy))).await)
}

async fn change(
    State(shared): State<Shared>,
    Extension(peer): Extension<Peer>,
    UrlPath(policy): UrlPath<String>,
    body: std::result::Result<Json<LimitChange>, JsonRejection>,
) -> Answer<crate::api::Limits> {
    let Json(change) = body.map_err(|error| invalid(&error.body_text()))?;
    let work = move |service: &mut Option<Service>| {
        let limits = running(service)?.change(&policy, &change)?;
        // What was asked for, as it was written.
        let asked = serde_json::to_string(&change).unwrap_or_default();
        tracing::info!(uid = peer.uid, pid = peer.pid, policy, change = asked, "limit changed");
        Ok(limits)
    };
    answer(shared.run(work).await)
}

async fn detach(
    State(shared): State<Shared>,
    Extension(peer): Extension<Peer>,
) -> Answer<Detached> {
    let work = move |service: &mut Option<Service>| {
        running(service)?;
        let interfaces = service.take().map_or_else(|| Ok(Vec::new()), Service::detach)?;
        tracing::info!(uid = peer.uid, pid = peer.pid, "detached from {}", interfaces.join(", "));
        Ok(Detached { schema_version: SCHEMA_VERSION, interfaces })
    };
    let result = shared.run(work).await;
    shared.stop.send_replace(true);
    answer(result)
}

async fn unknown() -> Refusal {
    Refusal(
        Error::new(Kind::NotFound, "the daemon has no such call")
            .hint("limiterctl and limiterd are of different versions"),
    )
}

async fn not_here() -> Refusal {
    Refusal(
        Error::new(Kind::Permission, "this socket is for reading only")
            .hint("changes go to the control socket ctl.sock"),
    )
}

fn invalid(problem: &str) -> Refusal {
    Refusal(Error::new(Kind::Invalid, format!("the request cannot be understood: {problem}")))
}
