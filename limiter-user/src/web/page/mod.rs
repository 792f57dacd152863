//! The page, in one piece: nothing of it comes from elsewhere.

use std::{fmt::Write as _, sync::LazyLock};

use axum::body::Bytes;
use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use data_encoding::BASE64;
use sha2::{Digest as _, Sha256};

use super::fresh::Fresh;
use crate::{
    api::{SCHEMA_VERSION, TopQuery, View},
    error::Result,
    server::Shared,
};

const HTML: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Sources that are shown.
const SOURCES: usize = 20;
/// Bans that are shown.
const BANS: usize = 50;

/// The document, and what browsers may do for it: this style, this script,
/// requests to where it came from, and nothing else.
static PAGE: LazyLock<(String, Option<HeaderValue>)> = LazyLock::new(|| {
    let page = HTML.replace("/* style */", STYLE).replace("/* script */", SCRIPT);
    let mut policy = String::from("default-src 'none'; base-uri 'none'; form-action 'none'");
    policy.push_str("; frame-ancestors 'none'; connect-src 'self'; img-src data:");
    for (kind, text) in [("style", STYLE), ("script", SCRIPT)] {
        let hash = BASE64.encode(&Sha256::digest(text));
        let _ = write!(policy, "; {kind}-src 'sha256-{hash}'");
    }
    (page, HeaderValue::from_str(&policy).ok())
});

pub(super) fn page() -> Response {
    let (page, policy) = &*PAGE;
    let kind = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
    let mut response = (kind, page.as_str()).into_response();
    if let Some(policy) = policy {
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy.clone());
    }
    response
}

/// What the page shows, collected at most once a second.
pub(super) struct Views(Fresh<Answer>);

type Answer = (StatusCode, Bytes);

impl Views {
    pub(super) fn new() -> Self {
        Self(Fresh::new())
    }

    pub(super) async fn answer(&self, shared: &Shared) -> Response {
        let collected = async {
            let text = view(shared).await.map(|view| serde_json::to_vec(&view));
            match text {
                Ok(Ok(text)) => (StatusCode::OK, text.into()),
                Ok(Err(error)) => failed(error.to_string()),
                Err(error) => failed(error.to_string()),
            }
        };
        let (status, text) = self.0.get(collected).await;
        let kind = if status.is_success() { "application/json" } else { "text/plain" };
        (status, [(header::CONTENT_TYPE, kind)], text).into_response()
    }
}

fn failed(why: String) -> Answer {
    (StatusCode::SERVICE_UNAVAILABLE, (why + "\n").into())
}

async fn view(shared: &Shared) -> Result<View> {
    let status = shared.status().await?;
    let kept = |service: &mut crate::service::Service| {
        Ok((service.limits(None)?, service.bans_at_a_glance(BANS)))
    };
    let (limits, bans) = shared.ask(kept).await?;
    let query =
        TopQuery { limit: Some(SOURCES), sort: Some("dropped".into()), ..TopQuery::default() };
    let traffic = move |shared: &Shared| {
        let traffic = &shared.traffic;
        Ok((traffic.top(&query)?, traffic.policies(limits.policies), traffic.history()))
    };
    let (top, policies, history) = shared.turn(traffic).await?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Ok(View { schema_version: SCHEMA_VERSION, host, status, history, top, policies, bans })
}
