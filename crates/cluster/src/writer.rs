//! The condition writer: takes decisions, and writes `Ready=Unknown` under the contract of
//! KEP-6371.
//!
//! Per Node the newest decision wins. Nothing is ever replayed: a decision that could not be
//! written is reported back, and the judge decides anew on what it knows by then. That includes
//! the decisions that waited while the server asked to be left alone.

mod attempt;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use swimlet_verdict::{Decision, Input, NodeUid, WriteOutcome};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use self::attempt::attempt;
use crate::authority::Authority;
use crate::backoff::Backoff;
use crate::events::EventSink;
use crate::fallen::Fallen;
use crate::fault::Fault;
use crate::mode::Mode;
use crate::node::NodeView;

/// Nodes that are written at a time: the rate of a real API server stops growing at 16 in flight
/// (305 patches/s with 1, 560 with 4, 660 with 16 and with 64).
pub const WRITES_AT_ONCE: usize = 16;
/// Decisions that wait, one per Node: as many as there can be Nodes.
pub const PENDING_MAX: usize = crate::nodes::NODES_MAX;
/// Longest time for one patch or read. The election leaves 3 s between the moment a leader stops
/// and the moment another can follow, so a patch begun at the last moment is over by then.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// How often the writer looks whether it runs at all.
const PULSE: Duration = Duration::from_millis(500);
/// A longer gap between two looks is a pause of this process, not a busy machine.
const PAUSED: Duration = Duration::from_millis(1_500);

/// Counters of the writer.
#[derive(Debug, Default)]
pub struct WriterStats {
    /// Decisions taken in.
    pub decisions: AtomicU64,
    /// Decisions replaced by a newer one before they were begun.
    pub replaced: AtomicU64,
    /// Decisions refused because [`PENDING_MAX`] waited.
    pub overflow: AtomicU64,
    /// Conditions written.
    pub written: AtomicU64,
    /// Conditions that `observe` would have written.
    pub would_write: AtomicU64,
    /// Decisions that a fresh read had overtaken.
    pub superseded: AtomicU64,
    /// Patches that the API server refused because the Node had changed.
    pub conflicts: AtomicU64,
    /// Nodes that were gone, or others of the same name.
    pub gone: AtomicU64,
    /// Attempts that failed or stayed in doubt.
    pub failed: AtomicU64,
    /// Attempts that stopped because we no longer led, or writes were paused.
    pub unauthorized: AtomicU64,
    /// Decisions given back unwritten after a pause for the API server's sake.
    pub asked_anew: AtomicU64,
}

/// What the attempts share.
pub(crate) struct WriterContext {
    pub(crate) api: kube::Api<NodeView>,
    pub(crate) mode: Mode,
    pub(crate) authority: Authority,
    pub(crate) fallen: Arc<Fallen>,
    pub(crate) events: EventSink,
    pub(crate) stats: Arc<WriterStats>,
}

/// The writer's task.
pub(crate) struct Writer {
    context: Arc<WriterContext>,
    decisions: mpsc::Receiver<Decision>,
    out: mpsc::Sender<Input>,
    /// How many Nodes wait or are being written: the pod marker lets them go first.
    backlog: watch::Sender<usize>,
    pending: BTreeMap<NodeUid, Decision>,
    /// What is being written, and whether it was withdrawn meanwhile.
    busy: BTreeMap<NodeUid, Arc<AtomicBool>>,
    attempts: JoinSet<Finished>,
    closed_until: Option<Instant>,
    backoff: Backoff,
}

/// How an attempt ended.
struct Finished {
    decision: Decision,
    result: Result<WriteOutcome, Fault>,
}

impl Writer {
    pub(crate) fn new(
        context: WriterContext,
        decisions: mpsc::Receiver<Decision>,
        out: mpsc::Sender<Input>,
        backlog: watch::Sender<usize>,
        seed: u64,
    ) -> Self {
        Self {
            context: Arc::new(context),
            decisions,
            out,
            backlog,
            pending: BTreeMap::new(),
            busy: BTreeMap::new(),
            attempts: JoinSet::new(),
            closed_until: None,
            backoff: Backoff::new(Duration::from_millis(500), Duration::from_secs(10), seed),
        }
    }

    /// Writes until `stop`. What is under way then is given up; a patch that the server has
    /// already got is guarded by its resourceVersion.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let _ = stop.run_until_cancelled(self.write_for_ever()).await;
    }

    async fn write_for_ever(&mut self) {
        let mut pulse = tokio::time::interval(PULSE);
        pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ran = Instant::now();
        loop {
            if ran.elapsed() > PAUSED {
                self.give_back().await;
            }
            ran = Instant::now();
            self.begin();
            self.backlog.send_if_modified(|backlog| {
                let now = self.pending.len() + self.busy.len();
                std::mem::replace(backlog, now) != now
            });
            let closed_until = self.closed_until;
            tokio::select! {
                decision = self.decisions.recv() => match decision {
                    Some(decision) => self.take(decision).await,
                    None => return,
                },
                Some(joined) = self.attempts.join_next() => match joined {
                    Ok(finished) => self.finish(finished).await,
                    // An attempt is never aborted, so it panicked: that is a fault of ours, and
                    // the whole task ends for it, which ends the process.
                    Err(error) => {
                        tracing::error!("an attempt to write a condition died: {error}");
                        return;
                    }
                },
                () = open_at(closed_until) => self.open().await,
                _ = pulse.tick() => {}
            }
        }
    }

    /// After a pause of this process: nothing that was decided before it is written. The nodes
    /// may have answered meanwhile, and a kubelet that was never written off leaves no trace.
    async fn give_back(&mut self) {
        for withdrawn in self.busy.values() {
            withdrawn.store(true, Ordering::Relaxed);
        }
        while let Ok(decision) = self.decisions.try_recv() {
            self.take(decision).await;
        }
        for decision in std::mem::take(&mut self.pending).into_values() {
            self.report(&decision, WriteOutcome::Superseded).await;
        }
    }

    async fn take(&mut self, decision: Decision) {
        let stats = &self.context.stats;
        stats.decisions.fetch_add(1, Ordering::Relaxed);
        let uid = decision.node.uid.clone();
        if decision.verdict.reason().is_none() {
            // The newest word is that nothing is to be written; an attempt that has not sent its
            // patch yet ends without it.
            if let Some(withdrawn) = self.busy.get(&uid) {
                withdrawn.store(true, Ordering::Relaxed);
            }
            if self.pending.remove(&uid).is_some() {
                stats.replaced.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        if self.pending.len() >= PENDING_MAX && !self.pending.contains_key(&uid) {
            stats.overflow.fetch_add(1, Ordering::Relaxed);
            self.report(&decision, WriteOutcome::Failed).await;
            return;
        }
        if self.pending.insert(uid, decision).is_some() {
            stats.replaced.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Begins what may be begun: not two attempts on one Node, and none while closed.
    fn begin(&mut self) {
        while self.closed_until.is_none() && self.attempts.len() < WRITES_AT_ONCE {
            let next = self
                .pending
                .keys()
                .find(|uid| !self.busy.contains_key(*uid))
                .cloned();
            let Some(uid) = next else { return };
            let Some(decision) = self.pending.remove(&uid) else {
                return;
            };
            let withdrawn = Arc::new(AtomicBool::new(false));
            self.busy.insert(uid, Arc::clone(&withdrawn));
            let context = Arc::clone(&self.context);
            self.attempts.spawn(async move {
                let result = attempt(&context, &decision, &withdrawn).await;
                Finished { decision, result }
            });
        }
    }

    async fn finish(&mut self, finished: Finished) {
        let Finished { decision, result } = finished;
        self.busy.remove(&decision.node.uid);
        let stats = &self.context.stats;
        let outcome = match result {
            Ok(outcome) => {
                let counter = match outcome {
                    WriteOutcome::Written => &stats.written,
                    WriteOutcome::WouldWrite => &stats.would_write,
                    WriteOutcome::Superseded => &stats.superseded,
                    WriteOutcome::Conflict => &stats.conflicts,
                    WriteOutcome::Gone => &stats.gone,
                    WriteOutcome::Failed => &stats.unauthorized,
                };
                counter.fetch_add(1, Ordering::Relaxed);
                if outcome != WriteOutcome::Failed {
                    self.backoff.reset();
                }
                outcome
            }
            Err(fault) => {
                stats.failed.fetch_add(1, Ordering::Relaxed);
                self.back_off(&decision, &fault);
                // The judge is told when it makes sense to ask again, not before.
                if self.closed_until.is_some() {
                    self.pending
                        .entry(decision.node.uid.clone())
                        .or_insert(decision);
                    return;
                }
                WriteOutcome::Failed
            }
        };
        self.report(&decision, outcome).await;
    }

    fn back_off(&mut self, decision: &Decision, fault: &Fault) {
        let node = &decision.node;
        let pause = self.backoff.next(fault.retry_after());
        if let Fault::Forbidden { message } = fault {
            tracing::error!(
                %node,
                "the API server forbids to write the condition; the aggregator needs the verbs \
                 get on nodes and patch on nodes/status: {message}",
            );
        } else {
            tracing::warn!(%node, "condition not written, asking again in {pause:.1?}: {fault}");
        }
        let until = Instant::now() + pause;
        self.closed_until = Some(self.closed_until.map_or(until, |before| before.max(until)));
    }

    /// Opens again, and gives back everything that waited: it was decided on what was known
    /// before.
    async fn open(&mut self) {
        self.closed_until = None;
        for decision in std::mem::take(&mut self.pending).into_values() {
            self.context
                .stats
                .asked_anew
                .fetch_add(1, Ordering::Relaxed);
            self.report(&decision, WriteOutcome::Failed).await;
        }
    }

    async fn report(&self, decision: &Decision, outcome: WriteOutcome) {
        let written = Input::Written {
            node: decision.node.clone(),
            episode: decision.episode,
            outcome,
        };
        // The receiver is gone only when the process is on its way out.
        let _ = self.out.send(written).await;
    }
}

/// Resolves when the writer opens again; never, if it is open.
async fn open_at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
