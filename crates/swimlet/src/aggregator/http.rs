//! `/v1` of an aggregator, for people on its own host until authentication comes.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::view::{self, Question};
use crate::member::handle::Handle;

/// What the routes need.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) member: Handle,
    pub(crate) questions: mpsc::Sender<Question>,
    /// Every setting with its value and where it came from.
    pub(crate) config: Value,
}

/// `/v1/members`, `/v1/verdicts` and `/v1/config`.
pub(crate) fn router(sources: Sources) -> Router {
    Router::new()
        .route("/v1/members", get(members))
        .route("/v1/verdicts", get(verdicts))
        .route("/v1/config", get(config))
        .with_state(sources)
        .layer(middleware::from_fn(loopback_only))
}

async fn loopback_only(
    ConnectInfo(remote): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    if remote.ip().to_canonical().is_loopback() {
        next.run(request).await
    } else {
        (
            StatusCode::FORBIDDEN,
            "/v1 is served to this host's loopback only\n",
        )
            .into_response()
    }
}

async fn members(State(sources): State<Sources>) -> Json<Value> {
    Json(json!({ "members": sources.member.view().await }))
}

async fn verdicts(State(sources): State<Sources>) -> Response {
    match view::ask(&sources.questions).await {
        Some(answer) => Json(answer).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "the judge has stopped\n").into_response(),
    }
}

async fn config(State(sources): State<Sources>) -> Json<Value> {
    Json(sources.config)
}
