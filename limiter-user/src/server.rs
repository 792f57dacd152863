//! What the daemon answers at its control sockets.

use std::{
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{
        ConnectInfo, DefaultBodyLimit, Path as UrlPath, Query, State,
        connect_info::Connected,
        rejection::{JsonRejection, QueryRejection},
    },
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{any, get, patch, post},
    serve::IncomingStream,
};
use serde::{Deserialize, Serialize};
use tokio::{net::UnixListener, sync::watch};
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
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long the answer to the last request may take to be read.
const ANSWER_TIME: Duration = Duration::from_millis(200);
/// Who is at the other end.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    uid: Option<u32>,
    pid: Option<i32>,
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        stream.io().peer_cred().map_or_else(
            |_| Self::default(),
            |peer| Self { uid: Some(peer.uid()), pid: peer.pid() },
        )
    }
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
        let work = move || match service.lock() {
            Ok(mut service) => work(&mut service),
            Err(_) => Err(Error::failed("the daemon is broken").hint("restart limiterd")),
        };
        tokio::task::spawn_blocking(work)
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
            .into_make_service_with_connect_info::<Peer>()
    };
    let Sockets { admin: admin_socket, read: read_socket, files } = sockets;
    let admin = axum::serve(admin_socket, finish(admin));
    let read = axum::serve(read_socket, finish(read));
    let outcome = tokio::select! {
        outcome = async { tokio::try_join!(admin, read) } => outcome.map(|_| ()),
        () = shutdown => Ok(()),
        () = detached(stopped) => Ok(()),
    };
    drop(files);
    outcome.map_err(|error| Error::failed(format!("the control socket failed: {error}")))?;
    match shared.service.lock() {
        Ok(mut service) => Ok(service.take()),
        Err(_) => Err(Error::failed("the daemon is broken")),
    }
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
            Kind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
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
    ConnectInfo(peer): ConnectInfo<Peer>,
    UrlPath(policy): UrlPath<String>,
    body: std::result::Result<Json<LimitChange>, JsonRejection>,
) -> Answer<crate::api::Limits> {
    let Json(change) = body.map_err(|error| invalid(&error.body_text()))?;
    let work = move |service: &mut Option<Service>| {
        let limits = running(service)?.change(&policy, &change)?;
        for limit in &limits.policies {
            tracing::info!(
                uid = peer.uid,
                pid = peer.pid,
                policy = limit.name,
                rate = limit.rate,
                burst = limit.burst,
                mode = limit.mode,
                "limit changed"
            );
        }
        Ok(limits)
    };
    answer(shared.run(work).await)
}

async fn detach(
    State(shared): State<Shared>,
    ConnectInfo(peer): ConnectInfo<Peer>,
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
