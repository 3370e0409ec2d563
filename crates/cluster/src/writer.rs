//! The condition writer: takes decisions, and writes `Ready=Unknown` under the contract of
//! KEP-6371.
//!
//! Per Node the newest decision wins. Nothing is ever replayed, and nothing is written on what
//! was decided long ago: a decision that could not be begun within [`DECISION_AGE_MAX`], or not
//! be written, is reported back, and the judge decides anew on what it knows by then. That
//! includes the decisions that waited while the server asked to be left alone.
//!
//! What a fresh read of the Node says against a decision is a pure rule, [`overtaken()`].

mod attempt;
#[cfg(test)]
mod fixtures;
mod overtaken;
mod queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use swimlet_protocol::ClusterId;
use swimlet_verdict::{Decision, Input, WriteOutcome};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

pub use self::attempt::READ_AGE_MAX;
use self::attempt::attempt;
pub use self::overtaken::overtaken;
pub use self::queue::DECISION_AGE_MAX;
pub(crate) use self::queue::Queue;
use crate::authority::Authority;
use crate::backoff::Backoff;
use crate::events::EventSink;
use crate::fallen::Fallen;
use crate::fault::Fault;
use crate::mode::Mode;
use crate::node::NodeView;
use crate::roster::Roster;

/// Nodes that are written at a time: the rate of a real API server stops growing at 16 in flight
/// (305 patches/s with 1, 560 with 4, 660 with 16 and with 64).
pub const WRITES_AT_ONCE: usize = 16;
/// Decisions that wait, one per Node: as many as there can be Nodes, because a judge may find
/// them all dead in one look.
pub const PENDING_MAX: usize = crate::nodes::NODES_MAX;
/// Longest time for one patch or read. The election leaves 3 s between the moment a leader stops
/// and the moment another can follow, so a patch begun at the last moment is over by then.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Longest pause that a server may ask for, before jitter. The API server's own priority and
/// fairness asks for seconds; a proxy that says an hour must not close the writer for as long.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// How often the writer looks whether it runs at all.
const PULSE: Duration = Duration::from_millis(500);
/// A longer gap between two looks is a pause of this process, not a busy machine.
const PAUSED: Duration = Duration::from_millis(1_500);
/// This many refusals in a row, with no write between them, are the server's word to us and not
/// about one Node: the writer rests. One object that an admission rule protects, or that is
/// invalid by itself, must not keep the others from being written.
const REFUSALS_MAX: u32 = 2;

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
    /// Decisions given back unwritten because they had waited for [`DECISION_AGE_MAX`].
    pub aged: AtomicU64,
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
    pub(crate) cluster: ClusterId,
    pub(crate) mode: Mode,
    pub(crate) authority: Authority,
    pub(crate) fallen: Arc<Fallen>,
    pub(crate) roster: Arc<Roster>,
    pub(crate) events: EventSink,
    pub(crate) stats: Arc<WriterStats>,
}

/// The writer's task.
pub(crate) struct Writer {
    context: Arc<WriterContext>,
    queue: Arc<Queue>,
    out: mpsc::Sender<Input>,
    /// How many Nodes wait or are being written: the pod marker lets them go first.
    backlog: watch::Sender<usize>,
    attempts: JoinSet<Finished>,
    closed_until: Option<Instant>,
    backoff: Backoff,
    /// Refusals since the last answer that was none.
    refusals: u32,
}

/// How an attempt ended.
struct Finished {
    decision: Decision,
    result: Result<WriteOutcome, Fault>,
}

impl Writer {
    pub(crate) fn new(
        context: WriterContext,
        queue: Arc<Queue>,
        out: mpsc::Sender<Input>,
        backlog: watch::Sender<usize>,
        seed: u64,
    ) -> Self {
        Self {
            context: Arc::new(context),
            queue,
            out,
            backlog,
            attempts: JoinSet::new(),
            closed_until: None,
            backoff: Backoff::new(Duration::from_millis(500), Duration::from_secs(10), seed),
            refusals: 0,
        }
    }

    /// Writes until `stop`. What is under way then is given up; a patch that the server has
    /// already got is guarded by its resourceVersion.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let _ = stop.run_until_cancelled(self.write_for_ever()).await;
    }

    async fn write_for_ever(&mut self) {
        let queue = Arc::clone(&self.queue);
        let mut authority = self.context.authority.clone();
        let mut pulse = tokio::time::interval(PULSE);
        pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ran = Instant::now();
        loop {
            if ran.elapsed() > PAUSED {
                self.give_back().await;
            }
            ran = Instant::now();
            self.begin().await;
            self.backlog.send_if_modified(|backlog| {
                let now = queue.len();
                std::mem::replace(backlog, now) != now
            });
            let closed_until = self.closed_until;
            tokio::select! {
                () = queue.changed() => {}
                () = authority.changed() => {}
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
        self.queue.withdraw_busy();
        for decision in self.queue.take_all() {
            self.report(&decision, WriteOutcome::Superseded).await;
        }
    }

    /// Begins what may be begun: nothing without leadership or in a pause, nothing while closed,
    /// and nothing that has waited too long. That is given back even when there is no room for
    /// it, so that the judge decides anew at once.
    async fn begin(&mut self) {
        if !self.context.authority.may_act() {
            // Nor when we may write again: a leader waits before its first write, and what was
            // decided before it lost the Lease is not of its time.
            self.queue.withdraw_busy();
            for decision in self.queue.take_all() {
                add_one(&self.context.stats.unauthorized);
                self.report(&decision, WriteOutcome::Failed).await;
            }
            return;
        }
        if self.closed_until.is_some() {
            return;
        }
        while let Some(decision) = self.queue.take_aged() {
            self.report(&decision, WriteOutcome::Superseded).await;
        }
        while self.attempts.len() < WRITES_AT_ONCE {
            let Some(begun) = self.queue.begin() else {
                return;
            };
            let context = Arc::clone(&self.context);
            self.attempts.spawn(async move {
                let result = attempt(&context, &begun.decision, &begun.withdrawn).await;
                Finished {
                    decision: begun.decision,
                    result,
                }
            });
        }
    }

    async fn finish(&mut self, finished: Finished) {
        let Finished { decision, result } = finished;
        self.queue.finished(&decision.node.uid);
        let outcome = match result {
            Ok(outcome) => {
                self.count(outcome);
                outcome
            }
            Err(fault) => {
                add_one(&self.context.stats.failed);
                self.fail(&decision, &fault);
                // The judge is told when it makes sense to ask again, not before.
                if self.closed_until.is_some() {
                    self.queue.put_back(decision);
                    return;
                }
                WriteOutcome::Failed
            }
        };
        self.report(&decision, outcome).await;
    }

    fn count(&mut self, outcome: WriteOutcome) {
        let stats = &self.context.stats;
        add_one(match outcome {
            WriteOutcome::Written => &stats.written,
            WriteOutcome::WouldWrite => &stats.would_write,
            WriteOutcome::Superseded => &stats.superseded,
            WriteOutcome::Conflict => &stats.conflicts,
            WriteOutcome::Gone => &stats.gone,
            WriteOutcome::Failed => &stats.unauthorized,
        });
        // Only a patch that got through shows that patches get through.
        if outcome == WriteOutcome::Written {
            self.refusals = 0;
        }
        if got_through(outcome) {
            self.backoff.reset();
        }
    }

    /// Closes the writer for a while, unless the fault is one Node's own.
    fn fail(&mut self, decision: &Decision, fault: &Fault) {
        let node = &decision.node;
        if let Fault::Forbidden { message } = fault {
            tracing::error!(
                %node,
                "the API server forbids to write the condition; the aggregator needs the verbs \
                 get on nodes and patch on nodes/status, and no admission rule against it: \
                 {message}",
            );
        } else {
            tracing::warn!(%node, "condition not written: {fault}");
        }
        if matches!(
            fault,
            Fault::Forbidden { .. } | Fault::Refused { .. } | Fault::Unusable(_)
        ) {
            self.refusals = self.refusals.saturating_add(1);
            if self.refusals < REFUSALS_MAX {
                return;
            }
        }
        let pause = self.backoff.next(asked_pause(fault));
        tracing::warn!("no condition is written for {pause:.1?}");
        let until = Instant::now() + pause;
        self.closed_until = Some(self.closed_until.map_or(until, |before| before.max(until)));
    }

    /// Opens again, and gives back everything that waited: it was decided on what was known
    /// before.
    async fn open(&mut self) {
        self.closed_until = None;
        for decision in self.queue.take_all() {
            add_one(&self.context.stats.asked_anew);
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

/// Whether that outcome shows that the server takes what we send it. Reads go on being answered
/// while patches are throttled, so what a read settled shows nothing, and a conflict comes from a
/// server that may be just as busy.
const fn got_through(outcome: WriteOutcome) -> bool {
    matches!(outcome, WriteOutcome::Written | WriteOutcome::WouldWrite)
}

/// How long the server asks to be left alone, as far as we heed it.
fn asked_pause(fault: &Fault) -> Option<Duration> {
    fault.retry_after().map(|asked| asked.min(RETRY_AFTER_MAX))
}

/// Resolves when the writer opens again; never, if it is open.
async fn open_at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

fn add_one(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests;
