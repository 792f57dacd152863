//! What the daemon answers at its control sockets.

use std::{
    collections::HashMap,
    convert::Infallible,
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
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use serde::Serialize;
use tokio::{
    net::{TcpListener, UnixListener},
    signal::unix::Signal,
    sync::{Semaphore, watch},
    time::MissedTickBehavior,
};
use tower_http::timeout::TimeoutLayer;

use crate::{
    access::{Groups, Peer, Role},
    alarm::{self, Alarms},
    api::{self, Detached, Failure, LimitChange, SCHEMA_VERSION},
    error::{Error, Kind, Result},
    interface,
    lists::List,
    openapi,
    plane::Samples,
    service::{Caller, Figures, Service},
    sockets::Sockets,
    traffic::Traffic,
    web,
};

/// Longest body of a request, bytes; more for a configuration, and for entries
/// of a list.
const MAX_BODY: usize = 64 << 10;
const MAX_CONFIG: usize = 4 << 20;
const MAX_LIST: usize = 64 << 20;
/// By which a client says where its user is connected from.
pub(crate) const CALLER: &str = "limiterd-caller";
/// Longest time for one request.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Longest time in which the head of a request may arrive.
const HEADER_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest life of a connection; a client makes another.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Connections at a time on one socket, and those of one user.
const MAX_CONNECTIONS: usize = 256;
const MAX_CONNECTIONS_OF_USER: usize = 64;
/// Time between two looks at the interfaces.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);
/// How often the counters are read.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// How often samples are taken from the kernel: the ring buffer holds those of
/// ten times as long.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
/// More than the ring buffer holds.
const MAX_SAMPLES_AT_ONCE: usize = 4096;
/// Time in which several changes of an interface count as one.
const SETTLE_TIME: Duration = Duration::from_millis(20);
/// Pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long the answer to the last request may take to be read.
const ANSWER_TIME: Duration = Duration::from_millis(200);
tokio::task_local! {
    /// Whose turn it is among the requests of a connection's user.
    static TURN: Arc<Semaphore>;
}

/// What the connections of one user share.
struct Room {
    places: Arc<Semaphore>,
    turn: Arc<Semaphore>,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(MAX_CONNECTIONS_OF_USER)),
            turn: Arc::new(Semaphore::new(1)),
        }
    }
}

/// The service, until it is detached.
#[derive(Clone)]
pub(crate) struct Shared {
    service: Arc<Mutex<Option<Service>>>,
    /// What is seen of the traffic.
    pub(crate) traffic: Arc<Traffic>,
    stop: watch::Sender<bool>,
}

impl Shared {
    /// Runs `work` on the service, off the threads that serve sockets: it
    /// waits for the kernel.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Option<Service>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.turn(move |shared| work(&mut lock(&shared.service))).await
    }

    /// Runs `work` when it is the user's turn.
    pub(crate) async fn turn<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = self.clone();
        // One request of a user at a time, so that nobody's many make others
        // wait for long.
        let turn = TURN.try_with(Arc::clone).ok();
        let _turn = match turn {
            Some(turn) => turn.acquire_owned().await.ok(),
            None => None,
        };
        tokio::task::spawn_blocking(move || work(&shared))
            .await
            .unwrap_or_else(|_| Err(Error::failed("the daemon gave up on this request")))
    }

    /// Asks the service, if it still protects.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Service) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run(|service| question(running(service)?)).await
    }

    /// All figures of this moment.
    pub(crate) async fn figures(&self) -> Result<Figures> {
        self.ask(Service::figures).await
    }

    /// How the shield stands.
    pub(crate) async fn status(&self) -> Result<api::Status> {
        let mut status = self.ask(Service::status).await?;
        status.attack = self.traffic.attack().0;
        Ok(status)
    }
}

fn running(service: &mut Option<Service>) -> Result<&mut Service> {
    service.as_mut().ok_or_else(|| Error::failed("the protection has been taken off"))
}

/// Where the daemon answers.
pub struct Doors {
    /// The control sockets.
    pub sockets: Sockets,
    /// For metrics and the page, unless that is off.
    pub web: Option<TcpListener>,
}

/// Serves until `shutdown` is done or a client has asked to detach. Gives the
/// service back if it is still attached.
///
/// # Errors
/// A socket cannot be used any more.
pub async fn serve(
    doors: Doors,
    service: Service,
    (traffic, samples): (Arc<Traffic>, Samples),
    hangup: Signal,
    shutdown: impl Future<Output = ()>,
) -> Result<Option<Service>> {
    let (stop, stopped) = watch::channel(false);
    let (alarms, waiting) = alarm::alarms();
    let shared = Shared { service: Arc::new(Mutex::new(Some(service))), traffic, stop };
    let finish = |router: Router<Shared>| {
        router
            .fallback(unknown)
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .layer(TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, TIMEOUT))
            .with_state(shared.clone())
    };
    let Sockets { admin: admin_socket, read: read_socket, files, groups } = doors.sockets;
    let admin = Door { router: finish(admin_routes()), least: Role::Admin, groups };
    let read = Door { router: finish(read_routes()), least: Role::Viewer, groups };
    tokio::select! {
        () = accept(admin_socket, admin) => {}
        () = accept(read_socket, read) => {}
        () = serve_web(doors.web, &shared) => {}
        () = watch_shield(&shared) => {}
        () = watch_traffic(&shared, &alarms) => {}
        () = alarm::tell(waiting) => {}
        () = take_samples(&shared, samples) => {}
        () = reload_on_hangup(&shared, hangup) => {}
        () = shutdown => {}
        () = detached(stopped) => {}
    }
    drop(files);
    let service = lock(&shared.service).take();
    Ok(service)
}

/// Serves metrics and the page for ever, if they are to be.
async fn serve_web(listener: Option<TcpListener>, shared: &Shared) {
    match listener {
        Some(listener) => web::serve(listener, shared.clone()).await,
        None => std::future::pending().await,
    }
}

/// What only reads.
fn read_routes() -> Router<Shared> {
    Router::new()
        .route("/v1/limits/{policy}", get(limit))
        .route("/v1/config", get(export))
        .route("/v1/config/diff", post(diff))
        .route("/v1/bans", get(bans))
        .route("/v1/allows", get(allows))
        .route("/v1/interfaces", get(interfaces))
        .merge(routes_of_both())
        .layer(DefaultBodyLimit::max(MAX_CONFIG))
        .route("/v1/detach", any(not_here))
        .route("/v1/config/apply", any(not_here))
        .route("/v1/config/confirm", any(not_here))
        .route("/v1/config/rollback", any(not_here))
        .route("/v1/config/save", any(not_here))
        .method_not_allowed_fallback(not_here)
}

/// What reads, and has no changing sibling of the same path.
fn routes_of_both() -> Router<Shared> {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/stats", get(stats))
        .route("/v1/limits", get(limits))
        .route("/v1/explain", get(explain))
        .route("/v1/events", get(events))
        .route("/v1/top", get(top))
        .route("/v1/history", get(history))
        .route("/v1/suggest", get(suggest))
        .route("/v1/openapi.json", get(openapi))
}

/// All calls.
fn admin_routes() -> Router<Shared> {
    let lists = Router::new()
        .route("/v1/bans", get(bans).post(ban).delete(unban))
        .route("/v1/allows", get(allows).post(allow).delete(disallow))
        .layer(DefaultBodyLimit::max(MAX_LIST));
    let config = Router::new()
        .route("/v1/config", get(export))
        .route("/v1/config/diff", post(diff))
        .route("/v1/config/apply", post(apply))
        .route("/v1/config/confirm", post(confirm))
        .route("/v1/config/rollback", post(roll_back))
        .route("/v1/config/save", post(save))
        .layer(DefaultBodyLimit::max(MAX_CONFIG));
    Router::new()
        .route("/v1/limits/{policy}", get(limit).patch(change))
        .merge(routes_of_both())
        .route("/v1/interfaces", get(interfaces).post(attach_one).delete(detach_one))
        .route("/v1/detach", post(detach))
        .merge(lists)
        .merge(config)
        .method_not_allowed_fallback(unknown)
}

/// Reads the configuration file again each time that a signal asks for it.
async fn reload_on_hangup(shared: &Shared, mut hangup: Signal) {
    while hangup.recv().await.is_some() {
        let _told = sd_notify::notify(&reloading());
        match shared.run(|service| running(service)?.reload()).await {
            Ok(changes) => tracing::info!("SIGHUP: configuration read, {} changes", changes.len()),
            Err(error) => {
                tracing::error!("SIGHUP: what was in force stays: {error}");
            }
        }
        let _told = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    }
    std::future::pending::<()>().await;
}

/// What a service manager is told of a reload: systemd wants the time, too.
fn reloading() -> Vec<sd_notify::NotifyState<'static>> {
    let mut told = vec![sd_notify::NotifyState::Reloading];
    told.extend(sd_notify::NotifyState::monotonic_usec_now().ok());
    told
}

/// Looks after the shield, every few seconds and when an interface changes, for
/// ever. Writes to the log what is not as it should be, and tells the service
/// manager that all of this is alive.
async fn watch_shield(shared: &Shared) {
    let mut known = Vec::new();
    let mut ticks = tokio::time::interval(WATCH_INTERVAL);
    let mut changes = interface::Changes::follow()
        .map_err(|error| tracing::warn!("changes of interfaces are seen late: {error}"))
        .ok();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = changed(&mut changes) => tokio::time::sleep(SETTLE_TIME).await,
        }
        let look = |service: &mut Option<Service>| running(service)?.watch();
        // The next look is not far.
        let Ok(problems) = shared.run(look).await else {
            continue;
        };
        let _told = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
        for problem in problems.iter().filter(|problem| !known.contains(*problem)) {
            tracing::warn!("{problem}");
        }
        for problem in known.iter().filter(|problem| !problems.contains(problem)) {
            tracing::info!("no longer so: {problem}");
        }
        known = problems;
    }
}

/// Reads the counters once a second, for all who look at what passes in one.
async fn watch_traffic(shared: &Shared, alarms: &Alarms) {
    let mut ticks = tokio::time::interval(COUNT_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let read = |service: &mut Option<Service>| running(service)?.counted();
        // The next reading is not far.
        if let Ok((counts, names, attack)) = shared.run(read).await
            && let Some(what) = shared.traffic.count(&counts, names, &attack)
        {
            alarms.raise(&attack, &what);
        }
    }
}

/// Takes what the programs show, many at a time: packets wake nobody.
async fn take_samples(shared: &Shared, mut samples: Samples) {
    let mut ticks = tokio::time::interval(SAMPLE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut next_look = tokio::time::Instant::now();
    loop {
        let now = ticks.tick().await;
        let lost = (now >= next_look).then(|| samples.lost().ok()).flatten();
        if lost.is_some() {
            next_look = now + COUNT_INTERVAL;
        }
        let at_most = samples.by_ref().take(MAX_SAMPLES_AT_ONCE);
        shared.traffic.note(at_most, lost);
    }
}

async fn changed(changes: &mut Option<interface::Changes>) {
    if let Some(following) = changes {
        match following.next().await {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!("changes of interfaces are seen late: {error}");
                *changes = None;
            }
        }
    }
    std::future::pending::<()>().await;
}

/// What is behind a socket, and for whom.
struct Door {
    router: Router,
    least: Role,
    groups: Groups,
}

/// Serves one socket, for ever. Each has connections of its own, so that those
/// who may only read cannot shut out those who may change; a client that keeps
/// a connection without asking anything loses it.
async fn accept(listener: UnixListener, door: Door) {
    let own = nix::unistd::geteuid().as_raw();
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut rooms = HashMap::<Option<u32>, Room>::new();
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
        let peer = Arc::new(Peer::of(&stream));
        // Nobody takes the places of others.
        rooms.retain(|_, room| room.places.available_permits() < MAX_CONNECTIONS_OF_USER);
        let of_user = rooms.entry(peer.uid).or_default();
        let turn = Arc::clone(&of_user.turn);
        let Ok(place_of_user) = Arc::clone(&of_user.places).try_acquire_owned() else {
            continue;
        };
        let router = if peer.role(door.groups, own) >= door.least {
            door.router.clone()
        } else {
            Router::new().fallback(stranger)
        };
        let service = TowerToHyperService::new(router.layer(Extension(peer)));
        tokio::spawn(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            // What goes wrong on a connection is the client's to see.
            let _ = tokio::time::timeout(CONNECTION_TIMEOUT, TURN.scope(turn, connection)).await;
            drop((place, place_of_user));
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
            Kind::Permission | Kind::Guarded => StatusCode::FORBIDDEN,
            Kind::Pending => StatusCode::CONFLICT,
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
    answer(shared.status().await)
}

async fn stats(
    State(shared): State<Shared>,
    query: Asked<api::StatsQuery>,
) -> Answer<crate::api::Stats> {
    let Query(query) = query.map_err(|error| invalid(&error.body_text()))?;
    let work = move |service: &mut Option<Service>| {
        running(service)?.stats(query.interface.as_deref(), query.policy.as_deref())
    };
    answer(shared.run(work).await)
}

/// Answers from what is known of the traffic: by a call that may take a while,
/// but waits for nobody.
async fn seen<T: Serialize + Send + 'static, Q: Send + 'static>(
    shared: Shared,
    query: Asked<Q>,
    work: impl FnOnce(&Traffic, &Q) -> Result<T> + Send + 'static,
) -> Answer<T> {
    let Query(query) = query.map_err(|error| invalid(&error.body_text()))?;
    answer(shared.turn(move |shared| work(&shared.traffic, &query)).await)
}

/// A query that is a value, or says why it is none.
type Asked<T> = std::result::Result<Query<T>, QueryRejection>;

async fn events(
    State(shared): State<Shared>,
    query: Asked<api::EventsQuery>,
) -> Answer<api::Events> {
    seen(shared, query, Traffic::events).await
}

async fn top(State(shared): State<Shared>, query: Asked<api::TopQuery>) -> Answer<api::Top> {
    seen(shared, query, Traffic::top).await
}

async fn history(State(shared): State<Shared>) -> Answer<api::History> {
    seen(shared, Ok(Query(())), |traffic, ()| Ok(traffic.history())).await
}

async fn suggest(
    State(shared): State<Shared>,
    query: Asked<api::SuggestQuery>,
) -> Answer<api::Suggestions> {
    let Query(query) = query.map_err(|error| invalid(&error.body_text()))?;
    let in_force = shared.ask(|service| service.limits(None)).await.map_err(Refusal)?;
    answer(shared.turn(move |shared| shared.traffic.suggest(&query, &in_force)).await)
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
    Extension(peer): Extension<Arc<Peer>>,
    headers: HeaderMap,
    UrlPath(policy): UrlPath<String>,
    request: Body<LimitChange>,
) -> Answer<api::Limits> {
    let (request, caller) = (body(request)?, caller(&headers)?);
    // What was asked for, as it was written.
    let asked = serde_json::to_string(&request).unwrap_or_default();
    let what = format!("limit of {}: {asked}", policy.escape_debug());
    let work = move |service: &mut Service, request: &LimitChange| {
        service.change(&policy, request, caller)
    };
    changing(shared, peer, what, request, work).await
}

async fn interfaces(State(shared): State<Shared>) -> Answer<api::Interfaces> {
    answer(shared.run(|service| running(service)?.interface_list()).await)
}

async fn attach_one(
    State(shared): State<Shared>,
    Extension(peer): Extension<Arc<Peer>>,
    request: Body<api::InterfaceRequest>,
) -> Answer<api::Interfaces> {
    let request = body(request)?;
    let what = format!("attach to {}", request.name.escape_debug());
    let work = |service: &mut Service, it: &api::InterfaceRequest| service.attach(&it.name);
    changing(shared, peer, what, request, work).await
}

async fn detach_one(
    State(shared): State<Shared>,
    Extension(peer): Extension<Arc<Peer>>,
    request: Body<api::InterfaceRequest>,
) -> Answer<api::Interfaces> {
    let request = body(request)?;
    let what = format!("detach from {}", request.name.escape_debug());
    let work =
        |service: &mut Service, it: &api::InterfaceRequest| service.detach_interface(&it.name);
    changing(shared, peer, what, request, work).await
}

async fn detach(
    State(shared): State<Shared>,
    Extension(peer): Extension<Arc<Peer>>,
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

/// Answers a call that changes something, and writes to the log who asked for
/// what.
async fn changing<B, T>(
    shared: Shared,
    peer: Arc<Peer>,
    what: String,
    body: B,
    work: impl FnOnce(&mut Service, &B) -> Result<T> + Send + 'static,
) -> Answer<T>
where
    B: Send + 'static,
    T: Serialize + Send + 'static,
{
    let work = move |service: &mut Option<Service>| {
        let result = work(running(service)?, &body);
        match &result {
            Ok(_) => tracing::info!(uid = peer.uid, pid = peer.pid, "done: {what}"),
            Err(error) => {
                tracing::warn!(uid = peer.uid, pid = peer.pid, "refused: {what}: {error}");
            }
        }
        result
    };
    answer(shared.run(work).await)
}

/// A body that is a value, or says why it is none.
type Body<T> = std::result::Result<Json<T>, JsonRejection>;

fn body<T>(body: Body<T>) -> std::result::Result<T, Refusal> {
    body.map(|Json(body)| body).map_err(|error| invalid(&error.body_text()))
}

/// Where the caller says that he is connected from.
fn caller(headers: &HeaderMap) -> std::result::Result<Option<Caller>, Refusal> {
    let Some(header) = headers.get(CALLER) else {
        return Ok(None);
    };
    let text = header.to_str().map_err(|_| invalid("the caller is no text"))?;
    text.parse().map(Some).map_err(Refusal)
}

async fn export(State(shared): State<Shared>) -> Answer<api::ConfigExport> {
    answer(shared.run(|service| Ok(running(service)?.export())).await)
}

async fn diff(
    State(shared): State<Shared>,
    request: Body<api::ConfigRequest>,
) -> Answer<api::ConfigChanges> {
    let request = body(request)?;
    answer(shared.run(move |service| running(service)?.diff(&request)).await)
}

async fn apply(
    State(shared): State<Shared>,
    Extension(peer): Extension<Arc<Peer>>,
    headers: HeaderMap,
    request: Body<api::ConfigRequest>,
) -> Answer<api::ConfigChanges> {
    let (request, caller) = (body(request)?, caller(&headers)?);
    let name = request.name.escape_debug();
    let what = match request.confirm_seconds {
        Some(seconds) => format!("apply {name} for {seconds} s"),
        None => format!("apply {name}"),
    };
    let work =
        move |service: &mut Service, request: &api::ConfigRequest| service.apply(request, caller);
    changing(shared, peer, what, request, work).await
}

async fn confirm(
    State(shared): State<Shared>,
    Extension(peer): Extension<Arc<Peer>>,
) -> Answer<api::ConfigState> {
    changing(shared, peer, "confirm".into(), (), |service, ()| service.confirm()).await
}

async fn roll_back(
    State(shared): State<Shared>,
    Extension(peer): Extension<Arc<Peer>>,
) -> Answer<api::ConfigState> {
    changing(shared, peer, "roll back".into(), (), |service, ()| service.roll_back()).await
}

async fn save(
    State(shared): State<Shared>,
    Extension(peer): Extension<Arc<Peer>>,
) -> Answer<api::ConfigSaved> {
    changing(shared, peer, "save".into(), (), |service, ()| service.save()).await
}

async fn bans(State(shared): State<Shared>, headers: HeaderMap) -> Response {
    list(shared, headers, List::Ban).await
}

async fn allows(State(shared): State<Shared>, headers: HeaderMap) -> Response {
    list(shared, headers, List::Allow).await
}

/// A list as one value, or, for who asks for it, as a value on each line.
async fn list(shared: Shared, headers: HeaderMap, list: List) -> Response {
    let result = shared.run(move |service| Ok(running(service)?.list(list))).await;
    let lines = headers.get(header::ACCEPT).is_some_and(|accept| accept == NDJSON);
    match result {
        Ok(list) if lines => {
            let line = |entry: api::ListEntry| -> std::result::Result<String, Infallible> {
                Ok(serde_json::to_string(&entry).unwrap_or_default() + "\n")
            };
            let lines = futures_util::stream::iter(list.entries.into_iter().map(line));
            ([(header::CONTENT_TYPE, NDJSON)], axum::body::Body::from_stream(lines)).into_response()
        }
        result => answer(result).into_response(),
    }
}

/// A JSON value on each line.
pub(crate) const NDJSON: &str = "application/x-ndjson";

async fn ban(
    State(shared): State<Shared>,
    Extension(peer): Extension<Arc<Peer>>,
    headers: HeaderMap,
    request: Body<api::ListAdd>,
) -> Answer<api::ListChanged> {
    list_add(shared, peer, headers, request, List::Ban).await
}

async fn allow(
    State(shared): State<Shared>,
    Extension(peer): Extension<Arc<Peer>>,
    headers: HeaderMap,
    request: Body<api::ListAdd>,
) -> Answer<api::ListChanged> {
    list_add(shared, peer, headers, request, List::Allow).await
}

async fn list_add(
    shared: Shared,
    peer: Arc<Peer>,
    headers: HeaderMap,
    request: Body<api::ListAdd>,
    list: List,
) -> Answer<api::ListChanged> {
    let (request, caller) = (body(request)?, caller(&headers)?);
    let verb = match list {
        List::Ban => "ban",
        List::Allow => "allow",
    };
    let what = named(verb, request.entries.iter().map(|entry| entry.prefix.as_str()));
    let work = move |service: &mut Service, request: &api::ListAdd| {
        service.list_add(list, request, caller)
    };
    changing(shared, peer, what, request, work).await
}

/// The first of some prefixes, and how many more there are.
fn named<'a>(verb: &str, mut prefixes: impl ExactSizeIterator<Item = &'a str>) -> String {
    let count = prefixes.len();
    // As it was sent, which may be anything.
    let first = prefixes.next().unwrap_or_default().escape_debug().take(64).collect::<String>();
    match count {
        0 | 1 => format!("{verb} {first}"),
        count => format!("{verb} {first} and {} more", count - 1),
    }
}

async fn unban(
    State(shared): State<Shared>,
    Extension(peer): Extension<Arc<Peer>>,
    request: Body<api::ListRemove>,
) -> Answer<api::ListChanged> {
    list_remove(shared, peer, request, List::Ban).await
}

async fn disallow(
    State(shared): State<Shared>,
    Extension(peer): Extension<Arc<Peer>>,
    request: Body<api::ListRemove>,
) -> Answer<api::ListChanged> {
    list_remove(shared, peer, request, List::Allow).await
}

async fn list_remove(
    shared: Shared,
    peer: Arc<Peer>,
    request: Body<api::ListRemove>,
    list: List,
) -> Answer<api::ListChanged> {
    let request = body(request)?;
    let verb = match list {
        List::Ban => "no longer ban",
        List::Allow => "no longer allow",
    };
    let what = named(verb, request.prefixes.iter().map(String::as_str));
    let work =
        move |service: &mut Service, request: &api::ListRemove| service.list_remove(list, request);
    changing(shared, peer, what, request, work).await
}

async fn explain(
    State(shared): State<Shared>,
    question: Asked<api::Question>,
) -> Answer<api::Explanation> {
    let Query(question) = question.map_err(|error| invalid(&error.body_text()))?;
    answer(shared.run(move |service| running(service)?.explain(&question)).await)
}

async fn openapi() -> Json<serde_json::Value> {
    Json(openapi::document())
}

async fn stranger() -> Refusal {
    Refusal(
        Error::new(Kind::Permission, "this user may not ask limiterd that")
            .hint("ask root, or for membership of the group that the configuration names"),
    )
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
