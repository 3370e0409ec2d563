//! Live reads of the kubelets' Leases.
//!
//! A Lease is read when the judge asks, never watched in bulk and never written: it is the
//! kubelet's. Every question is answered within 3 s: read, failed, or refused at once because
//! [`LEASE_READS_MAX`] others wait for their answers.

use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use siphasher::sip::SipHasher13;
use swimlet_verdict::constants::LEASE_DURATION_DEFAULT;
use swimlet_verdict::{Input, LeaseRead, NodeRef};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fault::{self, Fault};
use crate::roster::Roster;

/// Where kubelets keep their Leases.
pub const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";
/// Questions that may await their answer. One more is refused at once with
/// [`LeaseRead::Failed`], at no cost to the API server, and the judge asks again a second later;
/// its own bound is no larger, so that this does not happen.
///
/// The judge looks every 50 ms at most and fills the bound with each look, so 64 are worth 1,280
/// reads a second: a third of 5,000 Nodes that die at once are read in 1.3 s.
pub const LEASE_READS_MAX: usize = 64;
/// Reads that are under way at a time, as many as patches: a real API server does not do more in
/// the same time for more in flight.
pub const READS_AT_ONCE: usize = 16;
/// Longest time from a question to its answer, the time in the queue included. A slower read
/// counts as failed, and says nothing of the node.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Counters of the reads.
#[derive(Debug, Default)]
pub struct LeaseStats {
    /// Leases read, those that do not exist included.
    pub read: AtomicU64,
    /// Leases that exist and are not in use.
    pub leftover: AtomicU64,
    /// Reads that failed.
    pub failed: AtomicU64,
    /// Questions refused because [`LEASE_READS_MAX`] awaited their answers.
    pub overflow: AtomicU64,
}

/// Where Leases are asked for. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct LeaseQuestions {
    places: Arc<Semaphore>,
    queue: mpsc::Sender<Question>,
    stats: Arc<LeaseStats>,
}

/// The task that reads.
pub(crate) struct LeaseReader {
    api: Api<Lease>,
    asked: mpsc::Receiver<Question>,
    out: mpsc::Sender<Input>,
    roster: Arc<Roster>,
    stats: Arc<LeaseStats>,
}

/// One question, with its place among those that await an answer.
#[derive(Debug)]
struct Question {
    node: NodeRef,
    answer_by: Instant,
    place: OwnedSemaphorePermit,
}

impl LeaseQuestions {
    /// Asks for a Lease.
    ///
    /// # Errors
    /// If too many questions await their answers; the Node comes back.
    pub(crate) fn ask(&self, node: NodeRef) -> Result<(), NodeRef> {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            self.stats.overflow.fetch_add(1, Ordering::Relaxed);
            return Err(node);
        };
        let question = Question {
            node,
            answer_by: Instant::now() + TIMEOUT,
            place,
        };
        // There is room for every question that has a place; the reader is gone only when the
        // process is on its way out.
        self.queue
            .try_send(question)
            .map_err(|error| error.into_inner().node)
    }
}

impl LeaseReader {
    pub(crate) fn new(
        client: kube::Client,
        out: mpsc::Sender<Input>,
        roster: Arc<Roster>,
        stats: Arc<LeaseStats>,
    ) -> (LeaseQuestions, Self) {
        let (queue, asked) = mpsc::channel(LEASE_READS_MAX);
        let questions = LeaseQuestions {
            places: Arc::new(Semaphore::new(LEASE_READS_MAX)),
            queue,
            stats: Arc::clone(&stats),
        };
        let reader = Self {
            api: Api::namespaced(client, NODE_LEASE_NAMESPACE),
            asked,
            out,
            roster,
            stats,
        };
        (questions, reader)
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
                    let Some(question) = asked else { return };
                    let api = self.api.clone();
                    reads.spawn(async move {
                        let left = question.answer_by.saturating_duration_since(Instant::now());
                        let name = question.node.name.as_str();
                        let read = fault::timed(left, api.get(name)).await;
                        (question, read)
                    });
                }
                Some(Ok((question, read))) = reads.join_next() => {
                    let Question { node, answer_by, place } = question;
                    let mut read = self.sort(&node, read);
                    if Instant::now() > answer_by {
                        // This process did not run meanwhile: the kubelet may have renewed since.
                        read = LeaseRead::Failed;
                    }
                    drop(place);
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
                if is_in_use(&lease, self.roster.heartbeat(node)) {
                    renewed(&lease)
                } else {
                    self.stats.leftover.fetch_add(1, Ordering::Relaxed);
                    LeaseRead::None
                }
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

/// Whether a kubelet renews this Lease. One with `enableNodeLease: false` leaves its old Lease
/// behind, and reports its status all the same: its Node's `lastHeartbeatTime` then runs ahead of
/// the Lease's `renewTime` by more than the Lease's duration, while a kubelet in order renews
/// every quarter of that. Both are the node's own clock, and so comparable.
fn is_in_use(lease: &Lease, heartbeat_us: Option<i64>) -> bool {
    let Some(renewed) = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.renew_time.as_ref())
    else {
        return false;
    };
    let duration = duration(lease).unwrap_or(LEASE_DURATION_DEFAULT);
    let duration = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
    let runs_out = renewed.0.as_microsecond().saturating_add(duration);
    heartbeat_us.is_none_or(|heartbeat| heartbeat <= runs_out)
}

/// A fingerprint of `renewTime` alone: an annotation that someone puts on the Lease changes its
/// resourceVersion, and is no heartbeat. The UID is in it because a Lease that was re-created
/// was written by a living kubelet, even one whose clock stands still.
fn renewed(lease: &Lease) -> LeaseRead {
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    hasher.write(lease.metadata.uid.as_deref().unwrap_or_default().as_bytes());
    let renew_time = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.renew_time.as_ref());
    if let Some(renewed) = renew_time {
        hasher.write_i64(renewed.0.as_microsecond());
    }
    LeaseRead::Renewed {
        fingerprint: hasher.finish(),
        duration: duration(lease),
    }
}

/// `spec.leaseDurationSeconds`; a server lets no negative one in.
fn duration(lease: &Lease) -> Option<Duration> {
    let seconds = lease.spec.as_ref()?.lease_duration_seconds?;
    u64::try_from(seconds).ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests;
