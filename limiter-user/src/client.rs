//! A client of the daemon's control socket.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use tokio::net::UnixStream;

use crate::{
    api::{Detached, Failure, LimitChange, Limits, Stats, Status},
    error::{Error, Kind, Result},
};

/// Longer than the daemon gives itself.
const TIMEOUT: Duration = Duration::from_secs(6);

/// A daemon, by its socket.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// The daemon that listens at `socket`.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
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

    /// Takes the protection off everywhere; the daemon then ends.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub async fn detach(&self) -> Result<Detached> {
        self.call(Method::POST, "/v1/detach", Bytes::new()).await
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
        let answer = tokio::time::timeout(TIMEOUT, self.exchange(method, path, body)).await;
        let (success, body) = answer.unwrap_or_else(|_| {
            Err(self.unreachable("does not answer in time").hint("restart limiterd"))
        })?;
        if success {
            serde_json::from_slice(&body).map_err(|error| {
                Error::failed(format!("the daemon's answer cannot be understood: {error}"))
                    .hint("limiterctl and limiterd are of different versions")
            })
        } else {
            let text = String::from_utf8_lossy(&body);
            Err(serde_json::from_slice::<Failure>(&body)
                .map_or_else(|_| Error::failed(format!("the daemon refuses: {text}")), Error::from))
        }
    }

    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<(bool, Bytes)> {
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
        let broken = |error: hyper::Error| self.unreachable(&format!("broke off: {error}"));
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "limiterd")
            .header("content-type", "application/json")
            .body(Full::new(body))
            .map_err(|error| {
                Error::new(Kind::Invalid, format!("the request cannot be made: {error}"))
            })?;
        let talk = async {
            let answer = sender.send_request(request).await?;
            let success = answer.status().is_success();
            Ok((success, answer.into_body().collect().await?.to_bytes()))
        };
        tokio::pin!(talk);
        tokio::pin!(connection);
        tokio::select! {
            answer = &mut talk => answer.map_err(broken),
            ended = &mut connection => match ended {
                Ok(()) => talk.await.map_err(broken),
                Err(error) => Err(broken(error)),
            },
        }
    }

    fn unreachable(&self, problem: &str) -> Error {
        Error::new(Kind::Unreachable, format!("the daemon at {} {problem}", self.socket.display()))
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

fn json(value: &impl Serialize) -> Result<Bytes> {
    let json = serde_json::to_vec(value);
    json.map(Bytes::from)
        .map_err(|error| Error::failed(format!("the request cannot be made: {error}")))
}
