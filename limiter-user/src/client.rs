//! A client of the daemon's control socket.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, Response,
    body::{Bytes, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use tokio::net::UnixStream;

use crate::{
    api::{
        ConfigChanges, ConfigExport, ConfigRequest, ConfigSaved, ConfigState, Detached, Events,
        EventsQuery, Explanation, Failure, History, InterfaceRequest, Interfaces, LimitChange,
        Limits, ListAdd, ListChanged, ListRemove, Question, Stats, Status, SuggestQuery,
        Suggestions, Top, TopQuery,
    },
    error::{Error, Kind, Result},
    lists::List,
    server::{CALLER, NDJSON},
    service::Caller,
};

/// Longer than the daemon gives itself.
const TIMEOUT: Duration = Duration::from_secs(6);

/// A daemon, by its socket.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    caller: Option<Caller>,
}

impl Client {
    /// The daemon that listens at `socket`.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), caller: None }
    }

    /// The same, for somebody who is connected to this host from there, so that
    /// he does not lock himself out.
    #[must_use]
    pub const fn on_behalf_of(mut self, caller: Option<Caller>) -> Self {
        self.caller = caller;
        self
    }

    /// How the shield stands.
    ///
    /// # Errors
    /// As the daemon says, or [`Kind::Unreachable`]; likewise below.
    pub async fn status(&self) -> Result<Status> {
        self.get("/v1/status").await
    }

    /// What was counted, on one interface or all, under one policy or all.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub async fn stats(&self, interface: Option<&str>, policy: Option<&str>) -> Result<Stats> {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(interface.map(|name| ("interface", name)));
        query.extend_pairs(policy.map(|name| ("policy", name)));
        self.get(&format!("/v1/stats?{}", query.finish())).await
    }

    /// Sampled packets, and what else happened.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub async fn events(&self, query: &EventsQuery) -> Result<Events> {
        self.get(&with_query("/v1/events", query)?).await
    }

    /// Who sends most.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub async fn top(&self, query: &TopQuery) -> Result<Top> {
        self.get(&with_query("/v1/top", query)?).await
    }

    /// Packets per second of the last minutes.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub async fn history(&self) -> Result<History> {
        self.get("/v1/history").await
    }

    /// Limits that would fit what was seen.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub async fn suggest(&self, query: &SuggestQuery) -> Result<Suggestions> {
        self.get(&with_query("/v1/suggest", query)?).await
    }

    /// The limits in force, all or one.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub async fn limits(&self, policy: Option<&str>) -> Result<Limits> {
        match policy {
            Some(policy) => self.get(&limit_path(policy)?).await,
            None => self.get("/v1/limits").await,
        }
    }

    /// Changes a limit.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub async fn change(&self, policy: &str, change: &LimitChange) -> Result<Limits> {
        self.call(Method::PATCH, &limit_path(policy)?, json(change)?).await
    }

    /// What a configuration would change.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub async fn diff(&self, request: &ConfigRequest) -> Result<ConfigChanges> {
        self.call(Method::POST, "/v1/config/diff", json(request)?).await
    }

    /// Applies a configuration.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub async fn apply(&self, request: &ConfigRequest) -> Result<ConfigChanges> {
        self.call(Method::POST, "/v1/config/apply", json(request)?).await
    }

    /// Keeps what waits to be confirmed.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub async fn confirm(&self) -> Result<ConfigState> {
        self.call(Method::POST, "/v1/config/confirm", Bytes::new()).await
    }

    /// Takes back what waits to be confirmed.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub async fn roll_back(&self) -> Result<ConfigState> {
        self.call(Method::POST, "/v1/config/rollback", Bytes::new()).await
    }

    /// The configuration in force.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub async fn export(&self) -> Result<ConfigExport> {
        self.get("/v1/config").await
    }

    /// Lets the daemon write its configuration file.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub async fn save(&self) -> Result<ConfigSaved> {
        self.call(Method::POST, "/v1/config/save", Bytes::new()).await
    }

    /// Everything on a list.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub async fn list(&self, list: List) -> Result<crate::api::List> {
        self.get(list_path(list)).await
    }

    /// Everything on a list, as JSON values each on a line, piece by piece as
    /// they arrive.
    ///
    /// # Errors
    /// As [`Client::status`], or what `take` says of a piece.
    pub async fn list_lines(
        &self,
        list: List,
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let request = self.request(Method::GET, list_path(list), NDJSON, Bytes::new())?;
        let mut answer = self.send(request).await?;
        if !answer.status().is_success() {
            return Err(self.refusal(&self.body(answer).await?));
        }
        while let Some(frame) = answer.frame().await {
            let frame = frame.map_err(|error| self.broken(&error))?;
            if let Some(piece) = frame.data_ref() {
                take(piece)?;
            }
        }
        Ok(())
    }

    /// Adds to a list.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub async fn list_add(&self, list: List, request: &ListAdd) -> Result<ListChanged> {
        self.call(Method::POST, list_path(list), json(request)?).await
    }

    /// Removes from a list.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub async fn list_remove(&self, list: List, request: &ListRemove) -> Result<ListChanged> {
        self.call(Method::DELETE, list_path(list), json(request)?).await
    }

    /// What would happen to a packet, and why.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub async fn explain(&self, question: &Question) -> Result<Explanation> {
        self.get(&with_query("/v1/explain", question)?).await
    }

    /// Takes the protection off everywhere; the daemon then ends.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub async fn detach(&self) -> Result<Detached> {
        self.call(Method::POST, "/v1/detach", Bytes::new()).await
    }

    /// The interfaces.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub async fn interfaces(&self) -> Result<Interfaces> {
        self.get("/v1/interfaces").await
    }

    /// Protects one more interface.
    ///
    /// # Errors
    /// As [`Client::status`], and what the daemon says.
    pub async fn attach_interface(&self, name: &str) -> Result<Interfaces> {
        let request = InterfaceRequest { name: name.into() };
        self.call(Method::POST, "/v1/interfaces", json(&request)?).await
    }

    /// Takes the protection off one interface.
    ///
    /// # Errors
    /// As [`Client::status`], and what the daemon says.
    pub async fn detach_interface(&self, name: &str) -> Result<Interfaces> {
        let request = InterfaceRequest { name: name.into() };
        self.call(Method::DELETE, "/v1/interfaces", json(&request)?).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.call(Method::GET, path, Bytes::new()).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T> {
        let request = self.request(method, path, "application/json", body)?;
        let exchange = async {
            let answer = self.send(request).await?;
            Ok((answer.status().is_success(), self.body(answer).await?))
        };
        let answer = tokio::time::timeout(TIMEOUT, exchange).await;
        let (success, body) = answer.unwrap_or_else(|_| {
            Err(self.unreachable("does not answer in time").hint("restart limiterd"))
        })?;
        if !success {
            return Err(self.refusal(&body));
        }
        serde_json::from_slice(&body).map_err(|error| {
            Error::failed(format!("the daemon's answer cannot be understood: {error}"))
                .hint("limiterctl and limiterd are of different versions")
        })
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "limiterd")
            .header("accept", accept)
            .header("content-type", "application/json");
        let request = match self.caller {
            Some(caller) => request.header(CALLER, caller.to_string()),
            None => request,
        };
        request.body(Full::new(body)).map_err(|error| {
            Error::new(Kind::Invalid, format!("the request cannot be made: {error}"))
        })
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
        let stream =
            UnixStream::connect(&self.socket).await.map_err(|error| match error.kind() {
                ErrorKind::PermissionDenied => Error::new(
                    Kind::Permission,
                    format!("this user may not use {}", self.socket.display()),
                )
                .hint("run as root, or read through the ro.sock beside it"),
                _ => self
                    .unreachable("is not there")
                    .hint("start limiterd, or name its socket with --socket or LIMITERD_SOCKET"),
            })?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.broken(&error))?;
        // It ends with the answer.
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(|error| self.broken(&error))
    }

    async fn body(&self, answer: Response<Incoming>) -> Result<Bytes> {
        let body = answer.into_body().collect().await.map_err(|error| self.broken(&error))?;
        Ok(body.to_bytes())
    }

    fn refusal(&self, body: &Bytes) -> Error {
        let text = String::from_utf8_lossy(body);
        let plain = || match &*text {
            // As a request ends that takes too long.
            "" => self.unreachable("gave up on the request").hint("try it once more"),
            text => {
                let socket = self.socket.display();
                Error::failed(format!("the daemon at {socket} refuses: {text}"))
            }
        };
        serde_json::from_slice::<Failure>(body).map_or_else(|_| plain(), Error::from)
    }

    fn broken(&self, error: &hyper::Error) -> Error {
        self.unreachable(&format!("broke off: {error}"))
    }

    fn unreachable(&self, problem: &str) -> Error {
        Error::new(Kind::Unreachable, format!("the daemon at {} {problem}", self.socket.display()))
    }
}

const fn list_path(list: List) -> &'static str {
    match list {
        List::Ban => "/v1/bans",
        List::Allow => "/v1/allows",
    }
}

fn limit_path(policy: &str) -> Result<String> {
    if policy.is_empty() {
        return Err(Error::new(Kind::NotFound, "there is no policy ''")
            .hint("limiterctl limit show lists those that there are"));
    }
    let policy = percent_encoding::utf8_percent_encode(policy, percent_encoding::NON_ALPHANUMERIC);
    Ok(format!("/v1/limits/{policy}"))
}

fn with_query(path: &str, query: &impl Serialize) -> Result<String> {
    serde_urlencoded::to_string(query)
        .map(|query| format!("{path}?{query}"))
        .map_err(|error| Error::failed(format!("the request cannot be made: {error}")))
}

fn json(value: &impl Serialize) -> Result<Bytes> {
    let json = serde_json::to_vec(value);
    json.map(Bytes::from)
        .map_err(|error| Error::failed(format!("the request cannot be made: {error}")))
}
