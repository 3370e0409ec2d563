//! Waiting for what a distributed system will do at its own pace.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

/// How often a condition is looked at: small beside the seconds that Kubernetes
/// takes, large beside the cost of one API read.
const POLL_INTERVAL: Duration = Duration::from_millis(75);

/// Polls `check` until it yields a value, and returns that value.
///
/// `Ok(None)` and `Err` both mean "not yet": while components start, refused
/// connections and missing objects are normal.
///
/// # Errors
/// After `deadline`, with `what` was waited for and the last error seen.
pub async fn eventually<T>(
    deadline: Duration,
    what: &str,
    mut check: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        let seen = match tokio::time::timeout(deadline, check()).await {
            Ok(Ok(Some(value))) => return Ok(value),
            Ok(Ok(None)) => String::from("not so yet"),
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => String::from("the check itself did not return"),
        };
        if start.elapsed() >= deadline {
            bail!("waited {deadline:?} in vain for {what}; at last: {seen}");
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Polls `check` for all of `duration` and fails as soon as it yields `false`.
///
/// The counterpart of [`eventually`] for what must *not* happen.
///
/// # Errors
/// When `check` yields `false` or fails, with `what` should have held.
pub async fn holds(
    duration: Duration,
    what: &str,
    mut check: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    let start = Instant::now();
    loop {
        if !check().await? {
            bail!("{what} no longer held after {:?}", start.elapsed());
        }
        if start.elapsed() >= duration {
            return Ok(());
        }
        sleep(POLL_INTERVAL).await;
    }
}
