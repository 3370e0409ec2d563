//! The pod marker: pods of a Node that bears our Unknown leave their Services.
//!
//! The in-tree node lifecycle controller marks pods when its own pass turned a Node from ready to
//! not ready (`monitorNodeHealth` compares the condition before and after its own write); after an
//! Unknown of ours its pass finds nothing to change, and marks nobody. So what
//! `MarkPodsNotReady` does is done here: every pod with a Ready condition that is not False gets
//! False and a transition time, reason and message stay, and a Warning `NodeNotReady` is
//! recorded. The kubelet alone sets it back.
//!
//! Nodes first, pods after: while conditions wait to be written, no pod is begun.

mod mark;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use swimlet_verdict::NodeUid;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::mark::{Marked, mark_node};
use crate::authority::Authority;
use crate::backoff::Backoff;
use crate::events::EventSink;
use crate::fallen::{Fallen, FallenNode};
use crate::fault::Fault;
use crate::mode::Mode;
use crate::node::NodeView;

/// Nodes whose pods are marked at a time: as many as the in-tree controller takes.
pub const NODES_AT_ONCE: usize = 8;
/// Pods of one Node that are marked at a time. With 8 Nodes that makes 16 requests under way,
/// beyond which the rate of a real API server does not grow.
pub const PODS_AT_ONCE: usize = 2;

/// Counters of the pod marker.
#[derive(Debug, Default)]
pub struct PodStats {
    /// Nodes whose pods were all dealt with.
    pub nodes: AtomicU64,
    /// Nodes that recovered, or went, before their pods were all dealt with.
    pub overtaken: AtomicU64,
    /// Pods marked.
    pub marked: AtomicU64,
    /// Pods that had nothing to mark.
    pub unmarked: AtomicU64,
    /// Patches refused because the pod had changed.
    pub conflicts: AtomicU64,
    /// Looks at a Node that were repeated because the last one had aged.
    pub rechecked: AtomicU64,
    /// Passes over a Node that failed and are repeated.
    pub failed: AtomicU64,
}

/// What the passes share.
pub(crate) struct PodContext {
    pub(crate) client: kube::Client,
    pub(crate) nodes: kube::Api<NodeView>,
    pub(crate) authority: Authority,
    pub(crate) fallen: Arc<Fallen>,
    pub(crate) events: EventSink,
    pub(crate) stats: Arc<PodStats>,
}

/// The pod marker's task.
pub(crate) struct PodMarker {
    context: Arc<PodContext>,
    mode: Mode,
    backlog: watch::Receiver<usize>,
    /// How far we are with each fallen Node; at most as many as have fallen.
    progress: BTreeMap<NodeUid, Progress>,
    passes: JoinSet<(FallenNode, Result<Marked, Fault>)>,
    seed: u64,
}

#[derive(Debug)]
struct Progress {
    fallen: FallenNode,
    stage: Stage,
    backoff: Backoff,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting(Instant),
    Underway,
    Done,
}

impl PodMarker {
    pub(crate) fn new(
        context: PodContext,
        mode: Mode,
        backlog: watch::Receiver<usize>,
        seed: u64,
    ) -> Self {
        Self {
            context: Arc::new(context),
            mode,
            backlog,
            progress: BTreeMap::new(),
            passes: JoinSet::new(),
            seed,
        }
    }

    /// Marks until `stop`; never anything in `observe`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        if self.mode == Mode::Observe {
            stop.cancelled().await;
            return;
        }
        let _ = stop.run_until_cancelled(self.mark_for_ever()).await;
    }

    async fn mark_for_ever(&mut self) {
        let context = Arc::clone(&self.context);
        let mut authority = context.authority.clone();
        let mut news = true;
        loop {
            let may_begin = *self.backlog.borrow_and_update() == 0 && context.authority.may_act();
            let mut wake = None;
            if may_begin {
                // Thousands may fall within seconds, and while they do nothing is begun: they
                // are taken in together.
                if std::mem::take(&mut news) {
                    self.take_in(&context.fallen.all());
                }
                wake = self.begin(&context);
            }
            tokio::select! {
                () = context.fallen.changed() => news = true,
                () = authority.changed() => {}
                Ok(()) = self.backlog.changed() => {}
                () = wait_until(wake) => {}
                Some(joined) = self.passes.join_next() => match joined {
                    Ok((fallen, result)) => self.finish(&fallen, result),
                    // A pass is never aborted, so it panicked: a fault of ours, which ends the
                    // process.
                    Err(error) => {
                        tracing::error!("a pass over a node's pods died: {error}");
                        return;
                    }
                },
            }
        }
    }

    /// Learns which Nodes have fallen, and forgets those that stand again.
    fn take_in(&mut self, all: &BTreeMap<NodeUid, FallenNode>) {
        for fallen in all.values() {
            let known = self.progress.get(&fallen.node.uid);
            if known.is_none_or(|progress| progress.fallen != *fallen) {
                self.seed = self.seed.wrapping_add(1);
                let (first, most) = (Duration::from_secs(1), Duration::from_secs(30));
                let progress = Progress {
                    fallen: fallen.clone(),
                    stage: Stage::Waiting(Instant::now()),
                    backoff: Backoff::new(first, most, self.seed),
                };
                self.progress.insert(fallen.node.uid.clone(), progress);
            }
        }
        // A pass that is under way ends by itself: it looks whether its Node is still fallen.
        self.progress.retain(|uid, _| all.contains_key(uid));
    }

    /// Begins passes; returns when the next one is due.
    fn begin(&mut self, context: &Arc<PodContext>) -> Option<Instant> {
        let now = Instant::now();
        let mut wake = None::<Instant>;
        for progress in self.progress.values_mut() {
            let Stage::Waiting(due) = progress.stage else {
                continue;
            };
            if due > now {
                wake = Some(wake.map_or(due, |wake| wake.min(due)));
            } else if self.passes.len() < NODES_AT_ONCE {
                progress.stage = Stage::Underway;
                let context = Arc::clone(context);
                let fallen = progress.fallen.clone();
                self.passes.spawn(async move {
                    let result = mark_node(&context, &fallen).await;
                    (fallen, result)
                });
            }
        }
        wake
    }

    fn finish(&mut self, fallen: &FallenNode, result: Result<Marked, Fault>) {
        let stats = &self.context.stats;
        let progress = self
            .progress
            .get_mut(&fallen.node.uid)
            .filter(|progress| progress.fallen == *fallen);
        let node = &fallen.node;
        match result {
            Ok(Marked::All { pods }) => {
                stats.nodes.fetch_add(1, Ordering::Relaxed);
                tracing::info!(%node, pods, "pods marked NotReady");
                if let Some(progress) = progress {
                    progress.stage = Stage::Done;
                }
            }
            Ok(Marked::Overtaken) => {
                stats.overtaken.fetch_add(1, Ordering::Relaxed);
                // If the watch still shows our Unknown, it lags: look again shortly.
                if let Some(progress) = progress {
                    let due = Instant::now() + progress.backoff.next(None);
                    progress.stage = Stage::Waiting(due);
                }
            }
            Err(fault) => {
                stats.failed.fetch_add(1, Ordering::Relaxed);
                let Some(progress) = progress else { return };
                let pause = progress.backoff.next(fault.retry_after());
                progress.stage = Stage::Waiting(Instant::now() + pause);
                if let Fault::Forbidden { message } = &fault {
                    tracing::error!(
                        %node,
                        "the API server forbids to mark pods; the aggregator needs the verbs get \
                         and list on pods and patch on pods/status: {message}",
                    );
                } else {
                    tracing::warn!(%node, "pods not all marked, next try in {pause:.1?}: {fault}");
                }
            }
        }
    }
}

async fn wait_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
