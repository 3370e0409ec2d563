//! Incoming connections, and how many of them at once.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use quinn::Incoming;
use tokio::time::timeout;

use crate::config::Config;
use crate::endpoint::Bound;
use crate::event::RefusedReason;
use crate::link;
use crate::shared::{Shared, lock};
use crate::tls;

/// Between the closing of the endpoints and the end of their tasks, at a shutdown.
const SHUTDOWN_GRACE: std::time::Duration = std::time::Duration::from_millis(500);

/// Decides which handshakes may begin.
///
/// A handshake costs about 1 ms of CPU and, until it is done or given up, some
/// 30 KB. Anyone who reaches the port can begin one, under any source address.
#[derive(Debug)]
pub(crate) struct Admission {
    max: usize,
    retry_above: usize,
    per_ip_max: usize,
    in_progress: Arc<Mutex<InProgress>>,
}

/// What to do with an incoming handshake.
#[derive(Debug)]
pub(crate) enum Admit {
    /// Begin it; the ticket is its place.
    Begin(Ticket),
    /// Let it prove its address first, at no cost in memory.
    Retry,
    /// Say no. The address is proven, so this is no reflection.
    Refuse,
    /// Say nothing: the address may be forged.
    Ignore,
}

/// A place among the handshakes in progress, free again when dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    in_progress: Arc<Mutex<InProgress>>,
    ip: Option<IpAddr>,
}

#[derive(Debug, Default)]
struct InProgress {
    total: usize,
    /// By proven address; bounded by `total`.
    by_ip: BTreeMap<IpAddr, usize>,
}

impl Admission {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            max: config.handshakes_max,
            retry_above: config.handshakes_retry_above,
            per_ip_max: config.handshakes_per_ip_max,
            in_progress: Arc::default(),
        }
    }

    /// Handshakes in progress.
    pub(crate) fn in_progress(&self) -> usize {
        lock(&self.in_progress).total
    }

    /// Decides about a handshake from `ip`; `proven` if it showed that it
    /// receives what is sent there.
    ///
    /// Only proven addresses are counted against the limit per address, or
    /// forged ones could lock a member out. Unproven ones share the places below
    /// the Retry mark, so forgers can fill no more than those.
    pub(crate) fn decide(&self, ip: IpAddr, proven: bool) -> Admit {
        let mut in_progress = lock(&self.in_progress);
        if in_progress.total >= self.max {
            return if proven { Admit::Refuse } else { Admit::Ignore };
        }
        if !proven && in_progress.total >= self.retry_above {
            return Admit::Retry;
        }
        if proven {
            let of_ip = in_progress.by_ip.entry(ip).or_default();
            if *of_ip >= self.per_ip_max {
                return Admit::Refuse;
            }
            *of_ip += 1;
        }
        in_progress.total += 1;
        Admit::Begin(Ticket {
            in_progress: self.in_progress.clone(),
            ip: proven.then_some(ip),
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut in_progress = lock(&self.in_progress);
        in_progress.total = in_progress.total.saturating_sub(1);
        let Some(ip) = self.ip else { return };
        if let Some(of_ip) = in_progress.by_ip.get_mut(&ip) {
            *of_ip = of_ip.saturating_sub(1);
            if *of_ip == 0 {
                in_progress.by_ip.remove(&ip);
            }
        }
    }
}

/// Accepts on one endpoint until the transport stops. Its end stops the transport.
pub(crate) async fn run(shared: Arc<Shared>, bound: Bound) {
    loop {
        let incoming = tokio::select! {
            incoming = bound.endpoint.accept() => incoming,
            () = shared.cancel.cancelled() => return,
        };
        let Some(incoming) = incoming else {
            // A shutdown closes the endpoints right before it cancels their tasks.
            if timeout(SHUTDOWN_GRACE, shared.cancel.cancelled())
                .await
                .is_ok()
            {
                return;
            }
            tracing::error!(address = %bound.address, "the endpoint stopped");
            return shared.cancel.cancel();
        };
        admit(&shared, incoming);
    }
}

fn admit(shared: &Arc<Shared>, incoming: Incoming) {
    let proven = incoming.remote_address_validated();
    let counters = &shared.counters;
    match shared
        .admission
        .decide(incoming.remote_address().ip(), proven)
    {
        Admit::Begin(ticket) => {
            counters.handshakes_accepted.inc();
            shared
                .tasks
                .spawn(handshake(shared.clone(), incoming, ticket));
        }
        Admit::Retry => {
            counters.handshakes_retried.inc();
            // An address that is not proven may always be asked to retry.
            let _ = incoming.retry();
        }
        Admit::Refuse => {
            counters.handshakes_refused.inc();
            incoming.refuse();
        }
        Admit::Ignore => {
            counters.handshakes_ignored.inc();
            incoming.ignore();
        }
    }
}

async fn handshake(shared: Arc<Shared>, incoming: Incoming, ticket: Ticket) {
    let remote = incoming.remote_address();
    let begun = async {
        let credentials = shared.store.current();
        let (crypto, outcome) =
            tls::server(&shared.config.identity, credentials).map_err(RefusedReason::Handshake)?;
        let mut config = shared.server.clone();
        config.crypto = crypto;
        let failed = |error: quinn::ConnectionError| match outcome.get() {
            Some(Err(refusal)) => RefusedReason::Certificate(refusal.clone()),
            Some(Ok(_)) | None => RefusedReason::Handshake(error.to_string()),
        };
        let connecting = incoming.accept_with(Arc::new(config)).map_err(failed)?;
        let connection = connecting.await.map_err(failed)?;
        match outcome.get() {
            Some(Ok(identity)) => Ok((identity.clone(), connection)),
            // Client certificates are mandatory, so a verdict was given.
            Some(Err(_)) | None => Err(RefusedReason::Handshake("no certificate".to_owned())),
        }
    };
    let begun = tokio::select! {
        begun = timeout(shared.config.handshake_timeout, begun) => begun,
        () = shared.cancel.cancelled() => return,
    };
    drop(ticket);
    let reason = match begun {
        Ok(Ok((identity, connection))) => {
            match link::establish(&shared, identity, connection, false).await {
                Ok(()) => return,
                Err(link::Full) => RefusedReason::LinksFull,
            }
        }
        Ok(Err(reason)) => {
            shared.counters.handshakes_failed.inc();
            reason
        }
        Err(_) => {
            shared.counters.handshakes_stalled.inc();
            RefusedReason::Stalled
        }
    };
    shared.refused(remote, reason);
}

#[cfg(test)]
mod tests;
