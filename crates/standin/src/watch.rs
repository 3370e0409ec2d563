//! Watches: JSON documents, one a line, read straight from the store's history.
//!
//! A watch has no queue of its own. It holds the version it has seen and reads on from there whenever the store tells
//! of a new one, so a slow client costs nothing but its own place in the history; when that is forgotten it gets 410
//! and has to list again, as with a real server that closed a slow watch.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::stream;
use http::{HeaderValue, header};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::error::ApiError;
use crate::query::ListOptions;
use crate::resource::Endpoint;
use crate::store::{Change, Expired, Store};

/// A watch without `timeoutSeconds` ends after this; the real server draws from `--min-request-timeout` (30 min) to
/// twice that.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// A last bookmark comes this long before the timeout, as in `cacheWatcher.nextBookmarkTime`, so that a client goes on
/// from where it stands.
const LAST_BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

/// What a watch needs besides its query.
pub(crate) struct Room {
    pub(crate) store: Arc<Store>,
    pub(crate) bookmark_period: Duration,
    /// Ends the watch with the server.
    pub(crate) stopping: CancellationToken,
    /// One of the bounded number of watches; given back when the watch ends.
    #[expect(dead_code, reason = "held, not read: dropping it gives the place back")]
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Begins a watch. Errors come as events inside a 200 response, as in the real server's cacher.
pub(crate) fn begin(
    room: Room,
    endpoint: Endpoint,
    namespace: Option<String>,
    options: ListOptions,
) -> Response {
    let now = Instant::now();
    let watch = Watch {
        newest: room.store.subscribe(),
        deadline: now + options.timeout.unwrap_or(DEFAULT_TIMEOUT),
        next_bookmark: now,
        seen: 0,
        stage: Stage::Begin,
        room,
        endpoint,
        namespace,
        options,
    };
    let lines = stream::unfold(watch, |mut watch| async move {
        let chunk = watch.next_chunk().await?;
        Some((Ok::<_, Infallible>(chunk), watch))
    });
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

struct Watch {
    room: Room,
    endpoint: Endpoint,
    namespace: Option<String>,
    options: ListOptions,
    newest: watch::Receiver<u64>,
    seen: u64,
    deadline: Instant,
    next_bookmark: Instant,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begin,
    Follow,
    End,
}

impl Watch {
    /// The next lines, at least one; none when the watch is over.
    async fn next_chunk(&mut self) -> Option<Bytes> {
        loop {
            let mut lines = String::new();
            match self.stage {
                Stage::Begin => {
                    self.stage = Stage::Follow;
                    self.schedule_bookmark();
                    self.begin(&mut lines);
                    // What happened since the version asked for is told before any wait.
                    if lines.is_empty() {
                        continue;
                    }
                }
                Stage::Follow => {
                    // Marked as seen before reading, so that a write in between wakes the wait below.
                    self.newest.borrow_and_update();
                    self.follow(&mut lines);
                }
                Stage::End => return None,
            }
            if !lines.is_empty() {
                return Some(lines.into());
            }
            if self.stage == Stage::End {
                return None;
            }
            tokio::select! {
                changed = self.newest.changed() => {
                    if changed.is_err() {
                        return None;
                    }
                }
                () = sleep_until(self.next_bookmark), if self.options.bookmarks => {
                    self.schedule_bookmark();
                    return Some(self.bookmark(false).into());
                }
                () = sleep_until(self.deadline) => return None,
                () = self.room.stopping.cancelled() => return None,
            }
        }
    }

    /// Without a version the watch begins with the state as it is, told as `ADDED`; a watch-list does so from any.
    fn begin(&mut self, lines: &mut String) {
        match self.options.version {
            Some(version) if !self.options.initial_events => self.seen = version,
            _ => {
                let resource = self.endpoint.resource;
                let (version, objects) = self.room.store.list(resource, self.namespace.as_deref());
                self.seen = version;
                for object in objects
                    .iter()
                    .filter(|object| self.options.selector.matches(object))
                {
                    push_line(lines, "ADDED", self.endpoint.outward(object));
                }
                if self.options.initial_events && self.options.bookmarks {
                    lines.push_str(&self.bookmark(true));
                }
            }
        }
    }

    fn follow(&mut self, lines: &mut String) {
        match self.room.store.since(self.endpoint.resource, self.seen) {
            Ok((seen, changes)) => {
                self.seen = seen;
                for change in &changes {
                    if let Some(kind) = self.kind_of(change) {
                        push_line(lines, kind, self.shown(change, kind));
                    }
                }
            }
            Err(Expired { wanted, oldest }) => {
                self.stage = Stage::End;
                push_line(lines, "ERROR", ApiError::expired(wanted, oldest).document());
            }
        }
    }

    /// What a change means within the selection: what leaves it is `DELETED`, what enters it `ADDED`
    /// (`cacheWatcher.convertToWatchEvent`).
    fn kind_of(&self, change: &Change) -> Option<&'static str> {
        let selected = |object: &Value| {
            let namespace = self.namespace.as_deref();
            namespace.is_none_or(|wanted| object["metadata"]["namespace"] == wanted)
                && self.options.selector.matches(object)
        };
        let before = change.before.as_deref().is_some_and(selected);
        let after = !change.deleted && selected(&change.after);
        match (before, after) {
            (false, false) => None,
            (false, true) => Some("ADDED"),
            (true, true) => Some("MODIFIED"),
            (true, false) => Some("DELETED"),
        }
    }

    /// An object that left the selection is shown as it was, with the version at which it left.
    fn shown(&self, change: &Change, kind: &str) -> Value {
        match &change.before {
            Some(before) if kind == "DELETED" => {
                let mut object = self.endpoint.outward(before);
                object["metadata"]["resourceVersion"] = change.version.to_string().into();
                object
            }
            _ => self.endpoint.outward(&change.after),
        }
    }

    fn bookmark(&self, initial_events_end: bool) -> String {
        let mut metadata =
            json!({"creationTimestamp": null, "resourceVersion": self.seen.to_string()});
        if initial_events_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = json!({"kind": self.endpoint.kind, "apiVersion": self.endpoint.group_version, "metadata": metadata});
        let mut line = String::new();
        push_line(&mut line, "BOOKMARK", object);
        line
    }

    fn schedule_bookmark(&mut self) {
        let now = Instant::now();
        let next = now + self.room.bookmark_period;
        let last = self
            .deadline
            .checked_sub(LAST_BOOKMARK_BEFORE_END)
            .filter(|last| *last > now);
        self.next_bookmark = last.map_or(next, |last| next.min(last));
    }
}

fn push_line(lines: &mut String, kind: &str, object: Value) {
    lines.push_str(&json!({"type": kind, "object": object}).to_string());
    lines.push('\n');
}
