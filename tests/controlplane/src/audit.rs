//! The API server's audit log, as what it proves: who asked for what.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

/// How far a request had come when its event was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum AuditStage {
    /// The headers of a long answer, such as a watch, were sent.
    ResponseStarted,
    /// The request was answered; a watch has ended.
    ResponseComplete,
    /// The handler panicked.
    Panic,
}

/// One event of the audit log.
#[derive(Clone, Debug)]
pub struct AuditEvent {
    /// How far the request had come.
    pub stage: AuditStage,
    /// When the API server received the request.
    pub received: jiff::Timestamp,
    /// Who asked, for instance `system:node:a`.
    pub user: String,
    /// The client program's own word about itself.
    pub user_agent: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, ...
    pub verb: String,
    /// The request's path and query.
    pub uri: String,
    /// The plural name of the resource; empty for paths such as `/readyz`.
    pub resource: String,
    /// For instance `status`; empty if none.
    pub subresource: String,
    /// Empty for what has no namespace.
    pub namespace: String,
    /// Empty for collections.
    pub name: String,
    /// The HTTP status.
    pub code: u16,
    /// The request's body, for `nodes/status`, `pods/status`, leases and events.
    pub request: Option<Value>,
    /// The answer's body, for the same.
    pub response: Option<Value>,
}

/// What the API server records: bodies where the product writes, the bare
/// request for everything else.
pub(crate) fn policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "omitManagedFields": true,
        "rules": [
            {
                "level": "RequestResponse",
                "verbs": ["create", "update", "patch", "delete", "deletecollection"],
                "resources": [
                    {"group": "", "resources": ["nodes/status", "pods/status", "events"]},
                    {"group": "events.k8s.io", "resources": ["events"]},
                    {"group": "coordination.k8s.io", "resources": ["leases"]},
                ],
            },
            {"level": "Metadata"},
        ],
    })
}

/// The log's events so far, in the order they were written.
pub(crate) fn read(path: &Path) -> Result<Vec<AuditEvent>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    // The last line may be half written; it ends with a newline once it is whole.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| {
            let event: Line = serde_json::from_str(line)
                .with_context(|| format!("not an audit event: {line}"))?;
            event.try_into()
        })
        .collect()
}

/// audit.k8s.io/v1 Event, as far as it is used here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    stage: AuditStage,
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    user: User,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: Status,
    request_object: Option<Value>,
    response_object: Option<Value>,
    request_received_timestamp: String,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
}

impl TryFrom<Line> for AuditEvent {
    type Error = anyhow::Error;

    fn try_from(line: Line) -> Result<Self> {
        Ok(Self {
            stage: line.stage,
            received: line
                .request_received_timestamp
                .parse()
                .context("an audit event without a time")?,
            user: line.user.username,
            user_agent: line.user_agent,
            verb: line.verb,
            uri: line.request_uri,
            resource: line.object_ref.resource,
            subresource: line.object_ref.subresource,
            namespace: line.object_ref.namespace,
            name: line.object_ref.name,
            code: line.response_status.code,
            request: line.request_object,
            response: line.response_object,
        })
    }
}

#[cfg(test)]
mod tests;
