//! A tower service that bounds the requests in flight, counts their fates, and brings the server's
//! Retry-After to the caller.
//!
//! kube hands a caller the `Status` of a failed request and nothing of its headers. A 429 of API
//! priority and fairness is plain text with the time in a header alone, so this rewrites
//! such answers to a `Status` that carries the time in `details.retryAfterSeconds`.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use kube::core::response::{StatusDetails, StatusSummary};
use tokio::sync::{Semaphore, TryAcquireError};
use tower::{BoxError, Service};

use super::ClientStats;

/// Longest Retry-After that is honoured as it stands. A proxy that says a day would otherwise
/// silence the product for a day; the caller asks again after this and is told again.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);

/// A client's service within a bound, with what kube hides brought to the surface.
pub(super) struct Surface {
    inner: Client,
    permits: Arc<Semaphore>,
    stats: Arc<ClientStats>,
}

impl Surface {
    pub(super) fn new(inner: Client, in_flight_max: usize, stats: Arc<ClientStats>) -> Self {
        Self {
            inner,
            permits: Arc::new(Semaphore::new(in_flight_max)),
            stats,
        }
    }
}

impl Service<Request<Body>> for Surface {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let inner = self.inner.clone();
        let permits = Arc::clone(&self.permits);
        let stats = Arc::clone(&self.stats);
        Box::pin(async move {
            // Held until the answer's head is there: a watch goes on for long after that.
            let _permit = match Arc::clone(&permits).try_acquire_owned() {
                Ok(permit) => permit,
                Err(TryAcquireError::NoPermits) => {
                    stats.waited.fetch_add(1, Ordering::Relaxed);
                    permits.acquire_owned().await?
                }
                Err(closed @ TryAcquireError::Closed) => return Err(closed.into()),
            };
            stats.requests.fetch_add(1, Ordering::Relaxed);
            let mut unanswered = Unanswered(Some(&stats));
            let answer = inner.send(request).await?;
            unanswered.0 = None;
            let code = answer.status();
            if code == StatusCode::TOO_MANY_REQUESTS {
                stats.throttled.fetch_add(1, Ordering::Relaxed);
            } else if code.is_server_error() {
                stats.unavailable.fetch_add(1, Ordering::Relaxed);
            } else {
                return Ok(answer);
            }
            Ok(with_retry_after(answer).await?)
        })
    }
}

/// Counts a request that failed or was given up before its answer came.
struct Unanswered<'a>(Option<&'a ClientStats>);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(stats) = self.0 {
            stats.unanswered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Makes a refusal a `Status` that carries the Retry-After of its header.
async fn with_retry_after(answer: Response<Body>) -> Result<Response<Body>, kube::Error> {
    let (mut parts, body) = answer.into_parts();
    // kube itself reads a refusal to its end as well; the API server is trusted with that much.
    let text = body.collect_bytes().await?;
    let code = parts.status;
    let mut status = serde_json::from_slice::<Status>(&text).unwrap_or_else(|_| Status {
        status: Some(StatusSummary::Failure),
        message: String::from_utf8_lossy(&text).trim().to_owned(),
        reason: code
            .canonical_reason()
            .unwrap_or("Unknown")
            .replace(' ', ""),
        ..Status::default()
    });
    status.code = code.as_u16();
    let after = seconds_after(&parts.headers)
        .or(status
            .details
            .as_ref()
            .map(|details| details.retry_after_seconds))
        .unwrap_or_default()
        .min(u32::try_from(RETRY_AFTER_MAX.as_secs()).unwrap_or(u32::MAX));
    if after > 0 {
        status
            .details
            .get_or_insert_with(|| StatusDetails {
                name: String::new(),
                group: String::new(),
                kind: String::new(),
                uid: String::new(),
                causes: Vec::new(),
                retry_after_seconds: 0,
            })
            .retry_after_seconds = after;
    }
    // A `Status` of plain strings and numbers always has a JSON form.
    let json = serde_json::to_vec(&status).unwrap_or_default();
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.remove(TRANSFER_ENCODING);
    let json_type = HeaderValue::from_static("application/json");
    parts.headers.insert(CONTENT_TYPE, json_type);
    Ok(Response::from_parts(parts, Body::from(json)))
}

/// The Retry-After header in its form of seconds, the one that Kubernetes uses.
fn seconds_after(headers: &HeaderMap) -> Option<u32> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests;
