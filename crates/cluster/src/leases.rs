//! Live reads of the kubelets' Leases.
//!
//! A Lease is read when the judge asks, never watched in bulk and never written: it is the
//! kubelet's.

use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use siphasher::sip::SipHasher13;
use swimlet_verdict::{Input, LeaseRead, NodeRef};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::fault::{self, Fault};

/// Where kubelets keep their Leases.
pub const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";
/// Reads that are under way at a time; beside 16 patches within the client's bound of 32.
const READS_AT_ONCE: usize = 8;
/// Longest wait for one read; a slower one counts as failed, and says nothing of the node.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Counters of the reads.
#[derive(Debug, Default)]
pub struct LeaseStats {
    /// Leases read, those that do not exist included.
    pub read: AtomicU64,
    /// Reads that failed.
    pub failed: AtomicU64,
    /// Reads not begun because too many waited.
    pub overflow: AtomicU64,
}

/// The task that reads.
pub(crate) struct LeaseReader {
    api: Api<Lease>,
    asked: mpsc::Receiver<NodeRef>,
    out: mpsc::Sender<Input>,
    stats: Arc<LeaseStats>,
}

impl LeaseReader {
    pub(crate) fn new(
        client: kube::Client,
        asked: mpsc::Receiver<NodeRef>,
        out: mpsc::Sender<Input>,
        stats: Arc<LeaseStats>,
    ) -> Self {
        Self {
            api: Api::namespaced(client, NODE_LEASE_NAMESPACE),
            asked,
            out,
            stats,
        }
    }

    /// Reads until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let _ = stop.run_until_cancelled(self.read_for_ever()).await;
    }

    async fn read_for_ever(&mut self) {
        let mut reads = JoinSet::new();
        loop {
            tokio::select! {
                asked = self.asked.recv(), if reads.len() < READS_AT_ONCE => {
                    let Some(node) = asked else { return };
                    let api = self.api.clone();
                    reads.spawn(async move {
                        let name = node.name.as_str();
                        let read = fault::timed(TIMEOUT, api.get(name)).await;
                        (node, read)
                    });
                }
                Some(Ok((node, read))) = reads.join_next() => {
                    let read = self.sort(&node, read);
                    if self.out.send(Input::Lease { node, read }).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    fn sort(&self, node: &NodeRef, read: Result<Lease, Fault>) -> LeaseRead {
        match read {
            Ok(lease) => {
                self.stats.read.fetch_add(1, Ordering::Relaxed);
                lease_read(&lease)
            }
            Err(Fault::NotFound) => {
                self.stats.read.fetch_add(1, Ordering::Relaxed);
                LeaseRead::None
            }
            Err(fault) => {
                self.stats.failed.fetch_add(1, Ordering::Relaxed);
                if let Fault::Forbidden { message } = &fault {
                    tracing::error!(
                        %node,
                        "the API server forbids to read the node's Lease; grant get on \
                         leases.coordination.k8s.io in {NODE_LEASE_NAMESPACE}: {message}",
                    );
                } else {
                    tracing::debug!(%node, "the node's Lease was not read: {fault}");
                }
                LeaseRead::Failed
            }
        }
    }
}

/// A fingerprint of `renewTime` alone: an annotation that someone puts on the Lease changes its
/// resourceVersion, and is no heartbeat. The UID is in it because a Lease that was re-created
/// was written by a living kubelet, even one whose clock stands still.
fn lease_read(lease: &Lease) -> LeaseRead {
    let Some(spec) = &lease.spec else {
        return LeaseRead::None;
    };
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    hasher.write(lease.metadata.uid.as_deref().unwrap_or_default().as_bytes());
    if let Some(renewed) = &spec.renew_time {
        hasher.write_i64(renewed.0.as_microsecond());
    }
    let seconds = spec
        .lease_duration_seconds
        .and_then(|seconds| u64::try_from(seconds).ok());
    LeaseRead::Renewed {
        fingerprint: hasher.finish(),
        duration: seconds.map(Duration::from_secs),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(renewed: &str, version: &str, uid: &str) -> LeaseRead {
        let lease = json!({
            "metadata": {"name": "a", "uid": uid, "resourceVersion": version},
            "spec": {"renewTime": renewed, "leaseDurationSeconds": 40},
        });
        lease_read(&serde_json::from_value(lease).unwrap())
    }

    /// Guards that only a renewal looks like one.
    #[test]
    fn the_fingerprint_follows_the_renewal_and_not_the_version() {
        let first = read("2026-01-01T00:00:00.000000Z", "1", "u");
        assert_eq!(first, read("2026-01-01T00:00:00.000000Z", "2", "u"));
        assert_ne!(first, read("2026-01-01T00:00:10.000000Z", "3", "u"));
        assert_ne!(first, read("2026-01-01T00:00:00.000000Z", "1", "v"));
        let LeaseRead::Renewed { duration, .. } = first else {
            panic!("{first:?}")
        };
        assert_eq!(duration, Some(Duration::from_secs(40)));
    }
}
