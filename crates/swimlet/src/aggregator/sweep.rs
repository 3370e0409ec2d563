//! The aggregators' baseline: every node's kubelet port, reached in turn.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use swimlet_protocol::NodeName;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::judging::Ports;
use crate::member::verifier::Verifier;

/// Within this time of a start, or of a node's appearance, each port has been tried.
const FIRST_SWEEP: Duration = Duration::from_secs(60);
/// Each port is tried again within this time: well within the baseline's window,
/// so that one failed try does not end it.
const SWEEP: Duration = Duration::from_secs(600);
/// No pause is longer, so that a new node does not wait.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// No pause is shorter: a connect and a TLS handshake cost both sides about a millisecond.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// Checks under way at once; each takes a second at most.
const CHECKS_MAX: usize = 32;

/// Sweeps the ports again and again. Never returns.
pub(crate) async fn run(ports: watch::Receiver<Ports>, verifier: Verifier) {
    let mut tried: BTreeMap<SocketAddr, Instant> = BTreeMap::new();
    let mut checks = JoinSet::new();
    loop {
        let current = ports.borrow().clone();
        if tried.len() > 2 * current.len() + 16 {
            tried.retain(|port, _| current.iter().any(|(p, _)| p == port));
        }
        let untried = current.iter().filter(|(port, _)| !tried.contains_key(port));
        let (count, next) = untried.fold((0_u32, None), |(n, first), p| (n + 1, first.or(Some(p))));
        let due = next.or_else(|| oldest(&current, &tried));
        if let Some((port, node)) = due {
            tried.insert(*port, Instant::now());
            let (verifier, port, node) = (verifier.clone(), *port, node.clone());
            checks.spawn(async move { verifier.check_port(port, Some(&node)).await });
        }
        let pause = FIRST_SWEEP / count.max(1).saturating_mul(2);
        sleep(pause.clamp(PAUSE_MIN, PAUSE_MAX)).await;
        while checks.try_join_next().is_some() {}
        if checks.len() >= CHECKS_MAX {
            checks.join_next().await;
        }
    }
}

/// The port whose try lies farthest back, if that is long enough ago.
fn oldest<'a>(
    ports: &'a [(SocketAddr, NodeName)],
    tried: &BTreeMap<SocketAddr, Instant>,
) -> Option<&'a (SocketAddr, NodeName)> {
    let age = |port: &SocketAddr| tried.get(port).map_or(SWEEP, Instant::elapsed);
    let oldest = ports.iter().max_by_key(|(port, _)| age(port))?;
    // Spread over the sweep: the next is due as soon as the oldest is a sweep old.
    (age(&oldest.0) >= SWEEP).then_some(oldest)
}
