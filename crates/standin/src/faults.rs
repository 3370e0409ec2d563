//! Faults that tests stage: a request held back until a race is set up, an answer other than the server's own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::json;
use tokio::sync::oneshot;

use crate::requests::{RequestRecord, Verb};

/// Which requests a fault is for. Every condition that is set must hold; [`Matcher::any`] has none.
#[derive(Clone, Debug, Default)]
pub struct Matcher {
    verb: Option<Verb>,
    resource: Option<String>,
    subresource: Option<Option<String>>,
    namespace: Option<String>,
    name: Option<String>,
    user_agent: Option<String>,
}

impl Matcher {
    /// Every request for a resource.
    pub fn any() -> Self {
        Self::default()
    }

    /// Only requests of this verb.
    #[must_use]
    pub fn verb(mut self, verb: Verb) -> Self {
        self.verb = Some(verb);
        self
    }

    /// Only requests for this plural resource, main resource and subresources alike.
    #[must_use]
    pub fn resource(mut self, plural: impl Into<String>) -> Self {
        self.resource = Some(plural.into());
        self
    }

    /// Only requests for this subresource.
    #[must_use]
    pub fn subresource(mut self, subresource: impl Into<String>) -> Self {
        self.subresource = Some(Some(subresource.into()));
        self
    }

    /// Only requests for the main resource.
    #[must_use]
    pub fn no_subresource(mut self) -> Self {
        self.subresource = Some(None);
        self
    }

    /// Only requests in this namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Only requests for the object of this name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Only requests whose `User-Agent` contains this text.
    #[must_use]
    pub fn user_agent(mut self, part: impl Into<String>) -> Self {
        self.user_agent = Some(part.into());
        self
    }

    /// Whether a request is meant; also handy to filter [`Standin::requests`](crate::Standin::requests).
    pub fn matches(&self, request: &RequestRecord) -> bool {
        self.verb.is_none_or(|verb| verb == request.verb)
            && self
                .resource
                .as_ref()
                .is_none_or(|resource| *resource == request.resource)
            && self
                .subresource
                .as_ref()
                .is_none_or(|subresource| *subresource == request.subresource)
            && (self.namespace.is_none() || self.namespace == request.namespace)
            && (self.name.is_none() || self.name == request.name)
            && self
                .user_agent
                .as_ref()
                .is_none_or(|part| request.user_agent.contains(part.as_str()))
    }
}

/// One request held back before it touches the store. Dropping it releases the request.
///
/// A client that gives up while its request is held takes the request back: it is not carried out then.
#[derive(Debug)]
pub struct Hold {
    reached: Option<oneshot::Receiver<RequestRecord>>,
    release: oneshot::Sender<()>,
}

impl Hold {
    /// Waits until a matching request has arrived and tells which; its `code` is 0.
    ///
    /// Returns `None` when it was told already, or when the server has gone without seeing one.
    pub async fn reached(&mut self) -> Option<RequestRecord> {
        self.reached.take()?.await.ok()
    }

    /// Lets the request go on; if none has arrived yet, none will be held.
    pub fn release(self) {
        // The held side may have gone already, with its client or with the server.
        let _ = self.release.send(());
    }
}

/// An answer given in place of the server's own.
#[derive(Clone, Debug)]
pub struct Answer {
    code: StatusCode,
    retry_after_s: Option<u32>,
    content_type: &'static str,
    body: String,
}

impl Answer {
    /// 429 as the server's own flow control gives it: plain text, and `Retry-After` in whole seconds
    /// (`tooManyRequests` in `k8s.io/apiserver/pkg/server/filters`).
    pub fn too_many_requests(retry_after_s: u32) -> Self {
        Self {
            code: StatusCode::TOO_MANY_REQUESTS,
            retry_after_s: Some(retry_after_s),
            content_type: "text/plain; charset=utf-8",
            body: "Too many requests, please try again later.\n".into(),
        }
    }

    /// A `metav1.Status` failure of this code and reason.
    pub fn status(code: StatusCode, reason: &str, message: &str) -> Self {
        let document = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code.as_u16(),
        });
        Self {
            code,
            retry_after_s: None,
            content_type: "application/json",
            body: document.to_string(),
        }
    }

    /// 500, as etcd without a leader gives it.
    pub fn internal_error() -> Self {
        let message = "Internal error occurred: etcdserver: leader changed";
        Self::status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    /// 403, as RBAC without the verb gives it.
    pub fn forbidden(message: &str) -> Self {
        Self::status(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    /// A page of HTML, as a load balancer in front of the server gives it.
    pub fn html(code: StatusCode) -> Self {
        Self {
            code,
            retry_after_s: None,
            content_type: "text/html",
            body: format!("<html><body><h1>{code}</h1></body></html>\n"),
        }
    }

    /// The same with a `Retry-After` header, in whole seconds.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.code;
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static(self.content_type),
        );
        if let Some(seconds) = self.retry_after_s {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// What meets a request.
pub(crate) enum Fault {
    Held {
        reached: oneshot::Sender<RequestRecord>,
        released: oneshot::Receiver<()>,
    },
    Answered(Answer),
    Delayed(Duration),
}

/// The faults that wait for their requests. A test sets up a handful; this is as many as a loop gone wrong may.
const FAULTS_MAX: usize = 1_024;

/// The faults in waiting, the oldest first.
#[derive(Default)]
pub(crate) struct Faults {
    waiting: Mutex<Vec<(Matcher, Waiting)>>,
    dropped: AtomicU64,
}

enum Waiting {
    Hold {
        reached: oneshot::Sender<RequestRecord>,
        released: oneshot::Receiver<()>,
    },
    Answer {
        answer: Answer,
        remaining: usize,
    },
    Delay(Duration),
}

impl Faults {
    pub(crate) fn hold(&self, matcher: Matcher) -> Hold {
        let (reached, reached_rx) = oneshot::channel();
        let (release, released) = oneshot::channel();
        self.add(matcher, Waiting::Hold { reached, released });
        Hold {
            reached: Some(reached_rx),
            release,
        }
    }

    pub(crate) fn answer(&self, matcher: Matcher, answer: Answer, count: usize) {
        if count > 0 {
            self.add(
                matcher,
                Waiting::Answer {
                    answer,
                    remaining: count,
                },
            );
        }
    }

    pub(crate) fn delay(&self, matcher: Matcher, delay: Duration) {
        self.add(matcher, Waiting::Delay(delay));
    }

    pub(crate) fn clear_answers(&self) {
        self.lock()
            .retain(|(_, waiting)| matches!(waiting, Waiting::Hold { .. }));
    }

    /// The fault for this request, if one waits for it.
    pub(crate) fn meet(&self, request: &RequestRecord) -> Option<Fault> {
        let mut faults = self.lock();
        // A hold whose owner has let go holds nothing any more.
        faults.retain_mut(|(_, waiting)| match waiting {
            Waiting::Hold { released, .. } => matches!(
                released.try_recv(),
                Err(oneshot::error::TryRecvError::Empty)
            ),
            Waiting::Answer { .. } | Waiting::Delay(_) => true,
        });
        let index = faults
            .iter()
            .position(|(matcher, _)| matcher.matches(request))?;
        match &mut faults[index].1 {
            Waiting::Answer { answer, remaining } if *remaining > 1 => {
                *remaining -= 1;
                return Some(Fault::Answered(answer.clone()));
            }
            Waiting::Delay(delay) => return Some(Fault::Delayed(*delay)),
            Waiting::Answer { .. } | Waiting::Hold { .. } => {}
        }
        Some(match faults.remove(index).1 {
            Waiting::Hold { reached, released } => Fault::Held { reached, released },
            Waiting::Answer { answer, .. } => Fault::Answered(answer),
            Waiting::Delay(delay) => Fault::Delayed(delay),
        })
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn add(&self, matcher: Matcher, waiting: Waiting) {
        let mut faults = self.lock();
        // Beyond the bound the oldest goes: a hold let go is a request not held, which its test notices.
        if faults.len() == FAULTS_MAX {
            faults.remove(0);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        faults.push((matcher, waiting));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Matcher, Waiting)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
