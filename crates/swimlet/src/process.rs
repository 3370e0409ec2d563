//! A process's life: signals, the tasks that must not end, and the drain.

use std::time::Duration;

use anyhow::bail;
use axum::Router;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

/// How long the drain may take: goodbyes, closing links, and the Lease's release, which
/// takes up to three calls of 3 s. The manifests give a pod 15 s.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(11);
/// How long the tasks have to end after it.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// The process's signals: the first asks for a drain, the second for an end at once.
pub(crate) struct Shutdown {
    terminate: Signal,
    interrupt: Signal,
    stop: CancellationToken,
}

impl Shutdown {
    /// Listens for SIGTERM and SIGINT from now on.
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            stop: CancellationToken::new(),
        })
    }

    /// Cancelled when the tasks are to end, after the drain.
    pub(crate) fn stop_token(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Waits for the next signal.
    pub(crate) async fn signalled(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Waits for a signal or for the death of a task, then drains and stops all tasks.
///
/// A task that ends before it was told to is a fault: the process ends with it,
/// because a half-dead member is worse than a restarted one.
pub(crate) async fn supervise<F: Future<Output = ()>>(
    mut tasks: JoinSet<&'static str>,
    mut shutdown: Shutdown,
    drain: impl FnOnce() -> F,
) -> anyhow::Result<()> {
    let died = tokio::select! {
        name = shutdown.signalled() => {
            info!(signal = name, "stopping; a second signal stops at once");
            None
        }
        ended = tasks.join_next() => Some(match ended {
            Some(Ok(name)) => format!("the task {name:?} ended"),
            Some(Err(error)) => format!("a task failed: {error}"),
            None => "there was no task".to_owned(),
        }),
    };
    if let Some(died) = &died {
        error!(reason = died, "stopping");
    }
    let stop = shutdown.stop_token();
    let drained = async {
        if timeout(DRAIN_TIMEOUT, drain()).await.is_err() {
            warn!("the drain took too long and was cut off");
        }
        stop.cancel();
        let all = async { while tasks.join_next().await.is_some() {} };
        if timeout(STOP_TIMEOUT, all).await.is_err() {
            warn!("some tasks did not stop in time and were cut off");
        }
    };
    tokio::select! {
        () = drained => {}
        signal = shutdown.signalled() => bail!("stopped at once by a second signal, {signal}"),
    }
    match died {
        Some(died) => bail!(died),
        None => Ok(()),
    }
}

/// Serves the admin endpoint until `stop`.
pub(crate) async fn serve_admin(listener: TcpListener, router: Router, stop: CancellationToken) {
    let stopped = stop.clone();
    let served = swimlet_telemetry::admin::serve(listener, router, async move {
        stopped.cancelled().await;
    });
    tokio::select! {
        result = served => if let Err(error) = result {
            error!(%error, "the admin endpoint failed");
        },
        // A scraper that keeps its connection must not hold up the end.
        () = stop.cancelled() => {}
    }
}
